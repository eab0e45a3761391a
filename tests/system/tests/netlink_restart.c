/*
 * A program with a netlink socket while its gateway restarts: prints one line for each thing that happens to it.
 *
 * netlink_restart MODE: how it waits. SIGUSR1: it tries the socket and says how that went, and with MODE `request` it sends a
 * request alone. With MODE `ask` it only sends requests and waits for the answers, and says when their outcome changes, and
 * after SIGUSR1 the next outcome in any case.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

static volatile sig_atomic_t asked;
static int fd;
static const char *mode;

static void on_signal(int number)
{
	asked = number;
}

static const char *name(int error)
{
	const char *known = strerrorname_np(error);
	return known ? known : "?";
}

static int request(int kind, int flags)
{
	struct { struct nlmsghdr header; struct rtmsg body; } message = {
		{ sizeof message, kind, NLM_F_REQUEST | flags, 1, 0 }, { .rtm_family = AF_INET },
	};
	return send(fd, &message, sizeof message, 0);
}

/* Waits as the mode says. The socket is in the epoll set from the beginning. */
static int wait_for_it(int set)
{
	struct pollfd wanted = { fd, POLLIN, 0 };
	struct epoll_event event;
	fd_set readable;

	if (!strcmp(mode, "nonblocking"))
		return usleep(10000);
	if (!strncmp(mode, "epoll", 5))
		return epoll_wait(set, &event, 1, -1);
	if (!strcmp(mode, "select")) {
		FD_ZERO(&readable);
		FD_SET(fd, &readable);
		return select(fd + 1, &readable, NULL, NULL, NULL);
	}
	if (!strcmp(mode, "poll") || !strcmp(mode, "dup") || !strcmp(mode, "fork"))
		return poll(&wanted, 1, -1);
	return 0;
}

static void report(void)
{
	char buffer[1 << 16];
	struct pollfd wanted = { fd, POLLIN, 0 };

	if (!strcmp(mode, "request")) {
		printf("sent %s\n", request(RTM_NEWROUTE, NLM_F_ACK) < 0 ? name(errno) : "one");
		return;
	}
	const char *sent = request(RTM_GETLINK, NLM_F_DUMP) < 0 ? name(errno) : "taken";
	const char *received = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) < 0 ? name(errno) : "something";
	printf("send %s, recv %s, poll %d\n", sent, received, poll(&wanted, 1, 0));
}

static void say(const char *buffer, int len)
{
	const struct nlmsghdr *header = (const void *)buffer;

	if (header->nlmsg_type == NLMSG_ERROR)
		printf("error %s\n", name(-((struct nlmsgerr *)NLMSG_DATA(header))->error));
	else if (header->nlmsg_type == NLMSG_DONE)
		printf("done\n");
	else if (header->nlmsg_type == RTM_NEWROUTE && !(header->nlmsg_flags & NLM_F_MULTI))
		printf("route\n");
}

static void ask(void)
{
	const char *last = "", *now;
	char buffer[1 << 16];
	ssize_t len;

	for (;;) {
		if (request(RTM_NEWROUTE, NLM_F_ACK) < 0) {
			now = name(errno);
		} else {
			do
				len = recv(fd, buffer, sizeof buffer, 0);
			while (len < 0 && errno == EINTR);
			now = len <= 0 ? name(errno) : "answered";
		}
		if (asked)
			last = "";
		asked = 0;
		if (strcmp(last, now))
			printf("%s\n", now);
		last = now;
		usleep(20000);
	}
}

int main(int count, char **words)
{
	char buffer[1 << 16];
	struct sockaddr_nl address = { .nl_family = AF_NETLINK };
	struct sigaction action = { .sa_handler = on_signal };
	int set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = { .events = EPOLLIN };

	mode = count > 1 ? words[1] : "";
	setvbuf(stdout, NULL, _IOLBF, 0);
	sigaction(SIGUSR1, &action, NULL);
	fd = socket(AF_NETLINK, SOCK_RAW | (strcmp(mode, "nonblocking") ? 0 : SOCK_NONBLOCK), NETLINK_ROUTE);
	if (strcmp(mode, "request") && strcmp(mode, "idle") && strcmp(mode, "ask"))
		address.nl_groups = RTMGRP_IPV4_ROUTE;
	if (fd < 0 || bind(fd, (void *)&address, sizeof address))
		return 1;
	if (!strcmp(mode, "dup")) {
		int other = dup(fd);
		close(fd);
		fd = other;
	}
	if (!strcmp(mode, "epoll-edge"))
		event.events |= EPOLLET;
	epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
	/* A daemon whose first process has waited on the socket, too. */
	if (!strcmp(mode, "fork")) {
		struct pollfd wanted = { fd, POLLIN, 0 };
		poll(&wanted, 1, 0);
		if (fork())
			pause();
	}
	printf("%d\n", getpid());
	if (!strcmp(mode, "ask"))
		ask();
	for (;;) {
		int ready = wait_for_it(set);
		if (asked) {
			asked = 0;
			report();
			continue;
		}
		if (ready < 0)
			continue;
		/* Of edges one is told alone, so all is read. */
		int flags = strcmp(mode, "epoll-edge") ? 0 : MSG_DONTWAIT;
		int len;
		do {
			len = recv(fd, buffer, sizeof buffer, flags);
			if (len == 0)
				printf("end\n");
			else if (len > 0)
				say(buffer, len);
			else if (errno == ENOBUFS) {
				printf("ENOBUFS\n");
				request(RTM_NEWROUTE, NLM_F_ACK);
			} else if (errno != EAGAIN && errno != EINTR) {
				printf("recv %s\n", name(errno));
				sleep(1);
			}
		} while (flags && !(len < 0 && errno == EAGAIN));
	}
}
