/*
 * Library in front of ptrace(2) for user-mode-linux: a short write of a traced process's extended registers changes the
 * registers that it holds and keeps the others.
 *
 * User-mode-linux 6.1 has 2696 bytes for the state that XSAVE writes, which is up to PKRU. Linux takes no less than all of
 * the processor's state (xstateregs_set: EFAULT), and with AMX that is 11 008 bytes: user-mode-linux panics at its first
 * process. What lies behind its 2696 bytes it never changes, and its guests cannot use, because AMX has to be asked for
 * by arch_prctl(2).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

typedef long ptrace_call(enum __ptrace_request, ...);

/* The C library's function. */
static ptrace_call *libc_ptrace;

/* Room for the whole state, not on the stack: a stack of user-mode-linux is 16 KiB. One thread of it traces. */
static char whole_state[1 << 16];

__attribute__((constructor)) static void find_libc_ptrace(void)
{
	libc_ptrace = (ptrace_call *)dlsym(RTLD_NEXT, "ptrace");
}

/* Writes the registers in `part`, and all behind them as they are. */
static long write_part(pid_t pid, void *regset, const struct iovec *part)
{
	struct iovec whole = { .iov_base = whole_state, .iov_len = sizeof whole_state };
	if (libc_ptrace(PTRACE_GETREGSET, pid, regset, &whole) < 0)
		return -1;
	if (part->iov_len < whole.iov_len)
		memcpy(whole_state, part->iov_base, part->iov_len);
	else
		memcpy(whole_state, part->iov_base, whole.iov_len);
	return libc_ptrace(PTRACE_SETREGSET, pid, regset, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list arguments;
	va_start(arguments, request);
	pid_t pid = va_arg(arguments, pid_t);
	void *addr = va_arg(arguments, void *);
	void *data = va_arg(arguments, void *);
	va_end(arguments);
	if (request == PTRACE_SETREGSET && addr == (void *)NT_X86_XSTATE)
		return write_part(pid, addr, data);
	return libc_ptrace(request, pid, addr, data);
}
