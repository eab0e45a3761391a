/* Makes the calls that `fatpath exec` refuses, without the C library, by the numbers of each ABI that an x86-64 kernel
 * knows. Prints a line for each: ABI, call, and the error's number or 0. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AF_NETLINK_ = 16, NEWNET = 0x40000000, SIGCHLD_ = 17 };
enum { SOCKET, IOCTL, CLONE, UNSHARE, SETNS, BPF, RING, CLONE3, SETSOCKOPT, GETSOCKOPT, SOCKETCALL };

struct call {
    const char *name;
    int which;
    long arguments[5];
};

static const struct call calls[] = {
    {"route", SOCKET, {AF_NETLINK_, SOCK_RAW, 0}},
    {"xfrm", SOCKET, {AF_NETLINK_, SOCK_RAW | SOCK_CLOEXEC, 6}},
    {"generic", SOCKET, {AF_NETLINK_, SOCK_DGRAM, 16}},
    {"netfilter", SOCKET, {AF_NETLINK_, SOCK_RAW, 12}},
    {"IPT_SO_SET_REPLACE", SETSOCKOPT, {3, 0, 64, 0, 0}},
    {"IPT_SO_GET_INFO", GETSOCKOPT, {3, 0, 64, 0, 0}},
    {"IP6T_SO_SET_REPLACE", SETSOCKOPT, {3, 41, 64, 0, 0}},
    {"EBT_SO_SET_ENTRIES", SETSOCKOPT, {3, 0, 128, 0, 0}},
    {"TUNSETIFF", IOCTL, {3, 0x400454ca, 0}},
    {"SIOCADDRT", IOCTL, {3, 0x890b, 0}},
    {"SIOCSIFFLAGS", IOCTL, {3, 0x8914, 0}},
    {"SIOCSARP", IOCTL, {3, 0x8955, 0}},
    {"SIOCSIFVLAN", IOCTL, {3, 0x8983, 0}},
    {"SIOCBRADDBR", IOCTL, {3, 0x89a0, 0}},
    {"SIOCBRADDIF", IOCTL, {3, 0x89a2, 0}},
    {"SIOCADDTUNNEL", IOCTL, {3, 0x89f1, 0}},
    {"io_uring_setup", RING, {8, 0}},
    {"clone", CLONE, {NEWNET | SIGCHLD_, 0, 0, 0, 0}},
    {"setns", SETNS, {-1, NEWNET}},
    {"bpf", BPF, {8, 0, 0}},
    {"clone3", CLONE3, {0, 0}},
    {"unshare", UNSHARE, {NEWNET}},
};

static const struct call harmless[] = {
    {"inet", SOCKET, {AF_INET, SOCK_DGRAM, 0}},
    {"unix", SOCKET, {AF_UNIX, SOCK_STREAM, 0}},
    {"uevent", SOCKET, {AF_NETLINK_, SOCK_RAW, 15}},
};

static const char *const abis[] = {"x86-64", "x32", "i386"};

/* A call's error, by the numbers of x86-64; `bit` is x32's. */
static int native(const struct call *call, long bit) {
    static const long numbers[] = {41, 16, 56, 272, 308, 321, 425, 435, 54, 55, 0};
    const long *a = call->arguments;
    long number = numbers[call->which];
    if (bit)
        number = call->which == IOCTL ? 514 : call->which == SETSOCKOPT ? 541 : call->which == GETSOCKOPT ? 542 : number;
    register long r10 __asm__("r10") = a[3];
    register long r8 __asm__("r8") = a[4];
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number | bit), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    if (result == 0 && call->which == CLONE)
        _exit(0);
    return result < 0 ? -result : 0;
}

/* A call's error, by the numbers of i386. */
static int i386(const struct call *call) {
    static const long numbers[] = {359, 54, 120, 310, 346, 357, 425, 435, 366, 365, 102};
    const long *a = call->arguments;
    int result;
    __asm__ volatile("int $0x80" : "=a"(result)
                     : "a"(numbers[call->which]), "b"(a[0]), "c"(a[1]), "d"(a[2]), "S"(a[3]), "D"(a[4])
                     : "r8", "r9", "r10", "r11", "memory");
    if (result == 0 && call->which == CLONE)
        _exit(0);
    return result < 0 ? -result : 0;
}

static void all(const struct call *call, unsigned count, int abi) {
    for (; count > 0; call++, count--)
        printf("%s %s %d\n", abis[abi], call->name, abi == 2 ? i386(call) : native(call, abi ? 1L << 30 : 0));
    fflush(stdout);
}

int main(void) {
    /* Descriptor 3, which requests of ioctl are made of. */
    dup2(socket(AF_INET, SOCK_DGRAM, 0), 3);
    for (int abi = 0; abi < 3; abi++) {
        /* A namespace that is made all the same is the child's; numbers of i386 end it where the kernel does not have them. */
        int status;
        if (fork() == 0) {
            all(calls, sizeof calls / sizeof *calls, abi);
            static const struct call socketcall = {"socketcall", SOCKETCALL, {1, 0}};
            if (abi == 2)
                all(&socketcall, 1, abi);
            _exit(0);
        }
        wait(&status);
        if (WIFSIGNALED(status))
            printf("%s signal %d\n", abis[abi], WTERMSIG(status));
    }
    all(harmless, sizeof harmless / sizeof *harmless, 0);
    return 0;
}
