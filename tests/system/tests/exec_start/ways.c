/* Starts a program without an environment, in one of many ways: ways WAY PROGRAM A B C D.
 * Exits as the program does; with 126 if it cannot be started. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int exit_code(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 125;
}

/* What posix_spawn has started, or why it has not. */
static int spawned(int error, pid_t child) {
    int status;
    if (error)
        return error == EPERM ? 126 : 127;
    waitpid(child, &status, 0);
    return exit_code(status);
}

int main(int count, char **words) {
    if (count != 7)
        return 2;
    char *way = words[1], *path = words[2], **list = words + 2;
    char *name = basename(strdup(path));
    char directories[4096], command[4096];
    snprintf(directories, sizeof directories, "PATH=%s", dirname(strdup(path)));
    snprintf(command, sizeof command, "%s %s %s %s '%s'", path, list[1], list[2], list[3], list[4]);
    char *nothing[] = {NULL}, *little[] = {directories, NULL};
    char **own = little;
    pid_t child;
    int status;
#define IS(NAME) (strcmp(way, NAME) == 0)
    environ = own;
    if (IS("execve"))
        execve(path, list, nothing);
    else if (IS("execve_null"))
        execve(path, list, NULL);
    else if (IS("execv"))
        execv(path, list);
    else if (IS("execvp"))
        execvp(name, list);
    else if (IS("execvpe"))
        execvpe(name, list, nothing);
    else if (IS("execl"))
        execl(path, path, list[1], list[2], list[3], list[4], NULL);
    else if (IS("execlp"))
        execlp(name, path, list[1], list[2], list[3], list[4], NULL);
    else if (IS("execle"))
        execle(path, path, list[1], list[2], list[3], list[4], NULL, nothing);
    else if (IS("fexecve"))
        fexecve(open(path, O_RDONLY | O_CLOEXEC), list, nothing);
    else if (IS("execveat"))
        execveat(AT_FDCWD, path, list, nothing, 0);
    else if (IS("execveat_empty"))
        execveat(open(path, O_PATH | O_CLOEXEC), "", list, nothing, AT_EMPTY_PATH);
    else if (IS("posix_spawn"))
        return spawned(posix_spawn(&child, path, NULL, NULL, list, nothing), child);
    else if (IS("posix_spawnp"))
        return spawned(posix_spawnp(&child, name, NULL, NULL, list, nothing), child);
    else if (IS("system"))
        return exit_code(system(command));
    else if (IS("popen"))
        return exit_code(pclose(popen(command, "w")));
    else if (IS("vfork")) {
        child = vfork();
        if (child == 0) {
            execve(path, list, nothing);
            _exit(errno == EPERM ? 126 : 127);
        }
        waitpid(child, &status, 0);
        return exit_code(status);
    } else if (IS("syscall")) /* which the library does not see */
        syscall(SYS_execve, path, list, nothing);
    else
        return 2;
    return errno == EPERM ? 126 : 127;
}
