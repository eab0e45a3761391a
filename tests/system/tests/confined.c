/* A program that shuts itself in by a seccomp filter, and then looks up an interface by ioctl: `confined WAY NAME`.
 * The filter ends the process at each call that is not on a short list, as dhcpcd's does. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALLOW(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct sock_filter list[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    ALLOW(__NR_ioctl),
    ALLOW(__NR_sendmsg),
    ALLOW(__NR_recvmsg),
    ALLOW(__NR_ppoll),
    ALLOW(__NR_brk),
    ALLOW(__NR_mmap),
    ALLOW(__NR_munmap),
    ALLOW(__NR_read),
    ALLOW(__NR_write),
    ALLOW(__NR_close),
    ALLOW(__NR_dup3),
    ALLOW(__NR_exit_group),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};
static struct sock_fprog filter = {sizeof list / sizeof *list, list};

static void say(const char *text) {
    if (write(1, text, strlen(text)) < 0)
        _exit(9);
}

/* The C library's printf asks the kernel about standard output first. */
static void number(const char *what, long value) {
    char line[100];
    snprintf(line, sizeof line, "%s %ld\n", what, value);
    say(line);
}

static void seal(const char *way) {
    if (strcmp(way, "seccomp") == 0) {
        if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0)
            _exit(8);
        return;
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        _exit(8);
}

static int failed(int fd, unsigned long request, struct ifreq *about, const char *name) {
    memset(about, 0, sizeof *about);
    strncpy(about->ifr_name, name, IFNAMSIZ - 1);
    return ioctl(fd, request, about) == 0 ? 0 : errno;
}

static void look_up(int fd, const char *name) {
    struct ifreq about;
    int error = failed(fd, SIOCGIFMTU, &about, name);
    number("mtu", error ? -error : about.ifr_mtu);
    error = failed(fd, SIOCGIFFLAGS, &about, name);
    number("up", error ? -error : about.ifr_flags & IFF_UP);
    error = failed(fd, SIOCGIFHWADDR, &about, name);
    number("kind", error ? -error : about.ifr_hwaddr.sa_family);
    number("missing", -failed(fd, SIOCGIFMTU, &about, "nothing"));
    number("closed", -failed(400, SIOCGIFMTU, &about, name));
    number("pipe", -failed(1, SIOCGIFMTU, &about, name));
}

/* Many look-ups, whose answers have to be those of this process. */
static void compare(int fd, const char *name, int mtu) {
    struct ifreq about;
    for (int round = 0; round < 200; round++)
        if (failed(fd, SIOCGIFMTU, &about, name) != 0 || about.ifr_mtu != mtu)
            _exit(7);
    _exit(0);
}

int main(int count, char **arguments) {
    const char *way = arguments[1], *name = arguments[2];
    struct ifreq about;
    if (count < 3)
        return 2;
    if (strcmp(way, "chroot") == 0 && chroot("/proc/self/fdinfo") != 0)
        return 3;
    if (strcmp(way, "closed") == 0) {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        close_range(3, ~0U, 0);
    }
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (strcmp(way, "forked") == 0) {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        pid_t children[4];
        for (int at = 0; at < 4; at++)
            if ((children[at] = fork()) == 0) {
                seal("prctl");
                compare(fd, at % 2 ? "lo" : name, at % 2 ? 65536 : 1400);
            }
        failed(fd, SIOCGIFMTU, &about, name);
        number("parent", about.ifr_mtu);
        for (int at = 0; at < 4; at++) {
            int status;
            waitpid(children[at], &status, 0);
            number("child", status);
        }
        return 0;
    }
    if (strcmp(way, "taken") == 0) {
        /* Each number that the library could use becomes the program's own, with a datagram that has to stay. */
        int ends[2];
        socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends);
        if (write(ends[0], "own", 3) != 3)
            return 4;
        list[sizeof list / sizeof *list - 1].k = SECCOMP_RET_ERRNO | EPERM;
        seal("prctl");
        for (int at = 100; at < 700; at++)
            dup3(ends[1], at, 0);
        number("taken", -failed(fd, SIOCGIFMTU, &about, name));
        char own[4] = "";
        if (read(600, own, 3) != 3)
            return 5;
        say(own);
        say("\n");
        return 0;
    }
    if (strcmp(way, "file") == 0) {
        /* A filter that refuses sockets alone. */
        list[1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_socket, 0, 1);
        list[2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES);
        list[3] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        filter.len = 4;
        seal("prctl");
        number("socket", socket(AF_UNIX, SOCK_STREAM, 0));
        for (int round = 0; round < 3; round++) {
            char text[20] = "";
            int file = open("/proc/sys/net/ipv4/ipfrag_time", O_RDONLY);
            number("read", file < 0 ? -errno : read(file, text, sizeof text - 1));
            say(text);
            number("missing", open("/proc/sys/net/ipv4/nothing", O_RDONLY) < 0 ? -errno : 0);
            number("index", if_nametoindex("lo"));
        }
        return 0;
    }
    seal(way);
    look_up(fd, name);
    return 0;
}
