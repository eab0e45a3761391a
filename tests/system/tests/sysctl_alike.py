"""What the C library's functions do with files of /proc/sys/net: the same on Linux and on a gateway."""

import ctypes
import errno
import os

libc = ctypes.CDLL(None, use_errno=True)
for name in ["fopen", "freopen", "opendir", "readdir"]:
    getattr(libc, name).restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long

TIME = b"/proc/sys/net/ipv4/ipfrag_time"
NONE = b"/proc/sys/net/ipv4/nonexistent"


def value():
    with open(TIME) as file:
        return file.read()


def said(what, result):
    failed = result in (-1, None, 0) if what.startswith("open") else result == -1
    print(what, result, errno.errorcode.get(ctypes.get_errno(), 0) if failed else "", repr(value()))
    ctypes.set_errno(0)


def pointer(stream):
    return ctypes.c_void_p(stream)


# Streams, by name: buffered and not.
for mode in [b"w", b"a", b"we"]:
    for buffering in [0, 2]:
        for text in [b"41\n", b"x\n", b"0x2a", b"-"]:
            stream = pointer(libc.fopen(TIME, mode))
            libc.setvbuf(stream, None, buffering, 1024)
            said(f"{mode} {buffering} fputs {text}", min(libc.fputs(text, stream), 1))
            said("fflush", libc.fflush(stream))
            said("ferror", bool(libc.ferror(stream)))
            said("fclose", libc.fclose(stream))
stream = pointer(libc.fopen(TIME, b"w"))
libc.fputs(b"x", stream)
said("fclose alone", libc.fclose(stream))
for mode in [b"r", b"w", b"a"]:
    said(f"open {NONE} {mode}", libc.fopen(NONE, mode))

# Streams that become others'.
for text in [b"43\n", b"x\n"]:
    stream = libc.freopen(TIME, b"w", pointer(libc.fopen(b"/dev/null", b"w")))
    libc.fputs(text, pointer(stream))
    said(f"freopen {text}", libc.fflush(pointer(stream)))
    said("fclose", libc.fclose(pointer(stream)))
stream = pointer(libc.freopen(TIME, b"r", pointer(libc.fopen(b"/dev/null", b"r"))))
said("fgetc", libc.fgetc(stream))
libc.fclose(stream)
said(f"open again {NONE}", libc.freopen(NONE, b"w", pointer(libc.fopen(b"/dev/null", b"w"))))
os.symlink(TIME, "alike")
stream = pointer(libc.freopen(b"alike", b"w", pointer(libc.fopen(b"/dev/null", b"w"))))
libc.fputs(b"44", stream)
said("freopen a link", libc.fclose(stream))
stream = pointer(libc.fopen(b"alike", b"w"))
libc.fputs(b"y", stream)
said("fopen a link", libc.fclose(stream))

# Descriptors.
fd = libc.creat(TIME, 0o644)
said("creat, write", libc.write(fd, b"45\n", 3))
said("write behind it", libc.write(fd, b"46\n", 3))
os.close(fd)
fd = os.open(TIME, os.O_WRONLY)
said("write nothing", libc.write(fd, b"", 0))
said("write wrong", libc.write(fd, b"x", 1))
copy = os.dup(fd)
if os.fork() == 0:
    os._exit(os.write(copy, b"47") != 2)
said("a child", os.wait()[1])
said("write behind it", libc.write(fd, b"48", 2))
os.close(fd), os.close(copy)
fd = os.open(TIME, os.O_WRONLY | os.O_TRUNC)
said("writev", os.writev(fd, [b"4", b"9", b"\n"]))
os.close(fd)
fd = os.open(TIME, os.O_WRONLY)
said("a long text", libc.write(fd, b"50" + b" " * 8000, 8002))
os.close(fd)
fd = os.open(TIME, os.O_WRONLY)
said("a late number", libc.write(fd, b" " * 5000 + b"51", 5002))
os.close(fd)
fd = os.open(TIME, os.O_RDONLY)
print(os.read(fd, 1), os.read(fd, 0), os.lseek(fd, 0, os.SEEK_SET), os.read(fd, 100), os.read(fd, 100))
os.close(fd)
for flags in [os.O_WRONLY | os.O_CREAT | os.O_EXCL, os.O_RDONLY | os.O_DIRECTORY]:
    said(f"open {flags:#x}", libc.open(TIME, flags, 0o644))

# Names.
for path in [TIME, b"/proc/sys/net/ipv4/conf", b"/proc/sys/net", b"/proc/sys/net/"]:
    found = os.stat(path)
    print(path, oct(found.st_mode), found.st_uid, found.st_gid, found.st_size, [os.access(path, mode) for mode in range(8)])
directory = pointer(libc.opendir(b"/proc/sys/net/ipv4/conf"))


def names():
    found = []
    while entry := libc.readdir(directory):
        found.append((ctypes.string_at(entry + 19), ctypes.string_at(entry + 18, 1)))
    return found


print(names(), names())
libc.rewinddir(directory)
libc.readdir(directory), libc.readdir(directory), libc.readdir(directory)
at = libc.telldir(directory)
print(names())
libc.seekdir(directory, ctypes.c_long(at))
print(names(), libc.closedir(directory))
said("opendir of none", libc.opendir(NONE) or -1)
said("opendir of a file", libc.opendir(TIME) or -1)
