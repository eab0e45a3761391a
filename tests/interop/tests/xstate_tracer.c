/*
 * Does to a child what user-mode-linux does to its processes where the processor has more extended registers than it knows
 * of: writes back the first bytes of their state alone, here those of FXSAVE, which are too few on any processor with XSAVE.
 * Prints whether Linux took them, and whether the register in them, and all behind them, is as before.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FXSAVE = 512, XMM0 = 160, XMM_LEN = 16 };

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* Stops with registers that are not as they are at first, neither within the first bytes nor, with AVX, behind them. */
static void stop_with_ones_in_registers(void)
{
	long result = SYS_kill;
	if (__builtin_cpu_supports("avx"))
		__asm__ volatile("vcmptrueps %%ymm0, %%ymm0, %%ymm0\n\tsyscall"
				 : "+a"(result) : "D"((long)getpid()), "S"((long)SIGSTOP) : "rcx", "r11", "xmm0", "memory");
	else
		__asm__ volatile("pcmpeqd %%xmm0, %%xmm0\n\tsyscall"
				 : "+a"(result) : "D"((long)getpid()), "S"((long)SIGSTOP) : "rcx", "r11", "xmm0", "memory");
}

static size_t read_state(pid_t pid, char *state, size_t room)
{
	struct iovec whole = { .iov_base = state, .iov_len = room };
	if (ptrace(PTRACE_GETREGSET, pid, (void *)NT_X86_XSTATE, &whole) < 0)
		die("PTRACE_GETREGSET");
	return whole.iov_len;
}

int main(void)
{
	static char before[1 << 16], after[1 << 16], part[FXSAVE];
	pid_t pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
			die("PTRACE_TRACEME");
		stop_with_ones_in_registers();
		_exit(1);
	}
	if (waitpid(pid, NULL, 0) != pid)
		die("waitpid");
	size_t len = read_state(pid, before, sizeof before);
	memcpy(part, before, sizeof part);
	memset(part + XMM0, 0x5a, XMM_LEN);
	struct iovec known = { .iov_base = part, .iov_len = sizeof part };
	long written = ptrace(PTRACE_SETREGSET, pid, (void *)NT_X86_XSTATE, &known);
	const char *said = written == 0 ? "taken" : strerrorname_np(errno);
	if (read_state(pid, after, sizeof after) != len || len <= sizeof part)
		die("length of the state");
	printf("%s, xmm0 %s, the rest %s\n", said,
	       memcmp(after + XMM0, before + XMM0, XMM_LEN) == 0 ? "kept" : memcmp(after, part, sizeof part) == 0 ? "written" : "changed",
	       memcmp(after + FXSAVE, before + FXSAVE, len - FXSAVE) == 0 ? "kept" : "changed");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return 0;
}
