"""What the syscall filter refuses, as data: no code, no imports, read on every start.

``DENY`` and ``DENY_WHEN`` are the ``default`` filter and hold in ``strict`` too. ``strict`` lets through what
``STRICT_ALLOW`` lists (subject to the same rules), answers EPERM to ``STRICT_DENY`` and ENOSYS to the rest.
A change here changes the name of the cached program by itself; compiling is the work of ``seccomp``.
"""

from __future__ import annotations

EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
"""Linux errno values, the same on every architecture of ``ARCHES``."""

ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}
"""``uname -m`` and the AUDIT_ARCH the kernel reports for it. All are 64-bit, little-endian, without socketcall
and with clone's flags in argument 0, which the argument rules rely on."""

DENY: tuple[tuple[int, str, str], ...] = (
    (ENOSYS, "its mode can't be looked at; everybody falls back to openat", "openat2"),
    (EPERM, "kernel keyrings are not namespaced", "add_key keyctl request_key"),
    (EPERM, "loads programs into the kernel", "bpf"),
    (EPERM, "reads other programs and the kernel through counters", "perf_event_open lookup_dcookie"),
    (EPERM, "holds the kernel at page faults, a building block of exploits", "userfaultfd"),
    (EPERM, "replaces the kernel", "kexec_load kexec_file_load reboot"),
    (EPERM, "loads kernel modules", "init_module finit_module delete_module"),
    (EPERM, "changes the mounts that hide files", "mount umount umount2 pivot_root chroot"),
    (
        EPERM,
        "changes the mounts that hide files",
        "open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr",
    ),
    (EPERM, "opens files by number, past every path", "open_by_handle_at name_to_handle_at"),
    (EPERM, "enters another namespace", "setns"),
    (EPERM, "changes quotas, accounting or swap of the host", "quotactl quotactl_fd acct swapon swapoff"),
    (
        EPERM,
        "sets the clock of the host",
        "settimeofday clock_settime clock_settime64 clock_adjtime clock_adjtime64 adjtimex stime",
    ),
    (
        EPERM,
        "does I/O that this filter can't see",
        "io_uring_setup io_uring_enter io_uring_register",
    ),
    (EPERM, "reads the kernel log", "syslog"),
    (EPERM, "hardware access or segments", "iopl ioperm modify_ldt vm86 vm86old pciconfig_read pciconfig_write"),
    # Flags live in memory, where no filter can look: ENOSYS makes every libc fall back to clone.
    (ENOSYS, "clone3 hides its flags from the filter; clone works", "clone3"),
    (
        ENOSYS,
        "obsolete",
        "_sysctl afs_syscall bdflush create_module epoll_ctl_old epoll_wait_old get_kernel_syms getpmsg nfsservctl"
        " putpmsg query_module security sysfs tuxcall uselib ustat vserver",
    ),
)
"""(errno, reason, names): refused whatever the arguments. ptrace and process_vm_* stay: they reach no further
than the pid namespace of the box, and debuggers and crash handlers need them."""

LOW = 0xFFFFFFFF
"""The kernel looks at the low half of ``int`` arguments only, so the rules do too."""

NAMESPACES = (
    ("CLONE_NEWNS", 0x00020000),
    ("CLONE_NEWCGROUP", 0x02000000),
    ("CLONE_NEWUTS", 0x04000000),
    ("CLONE_NEWIPC", 0x08000000),
    ("CLONE_NEWUSER", 0x10000000),
    ("CLONE_NEWPID", 0x20000000),
    ("CLONE_NEWNET", 0x40000000),
)
CLONE_NEWTIME = 0x80
"""Only for unshare: in clone this bit belongs to the exit signal."""

_FAMILY = "only AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK are namespaced and watched"

O_CREAT, O_TMPFILE, S_ISUID = 0o100, 0o20000000, 0o4000
_SETUID = "leaves a file that runs with its owner's rights on the host"
MODES = (
    ("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("creat", 1), ("mknod", 1), ("mknodat", 2),
)  # fmt: skip
"""Calls that set a mode, and which argument it is."""

DENY_WHEN: tuple[tuple[str, int, str, tuple[tuple[int, str, int, int], ...]], ...] = (
    *(("unshare", EPERM, f"makes a namespace ({name})", ((0, "&", bit, bit),)) for name, bit in NAMESPACES),
    ("unshare", EPERM, "makes a namespace (CLONE_NEWTIME)", ((0, "&", CLONE_NEWTIME, CLONE_NEWTIME),)),
    *(("clone", EPERM, f"makes a namespace ({name})", ((0, "&", bit, bit),)) for name, bit in NAMESPACES),
    ("ioctl", EPERM, "types into the caller's terminal (TIOCSTI)", ((1, "&", 0x5412, LOW),)),
    ("ioctl", EPERM, "types into the caller's console (TIOCLINUX)", ((1, "&", 0x541C, LOW),)),
    # The complement of {1, 2, 10, 16}. ">" compares 64 bits: a family with a dirty high half is refused as well.
    ("socket", EAFNOSUPPORT, _FAMILY, ((0, "&", 0, LOW),)),
    ("socket", EAFNOSUPPORT, _FAMILY, ((0, "&", 3, LOW),)),
    ("socket", EAFNOSUPPORT, _FAMILY, ((0, "&", 4, LOW & ~3),)),
    ("socket", EAFNOSUPPORT, _FAMILY, ((0, "&", 8, LOW & ~1),)),
    ("socket", EAFNOSUPPORT, _FAMILY, ((0, "&", 11, LOW),)),
    ("socket", EAFNOSUPPORT, _FAMILY, ((0, "&", 12, LOW & ~3),)),
    ("socket", EAFNOSUPPORT, _FAMILY, ((0, ">", 16, 0),)),
    ("socket", EAFNOSUPPORT, "of netlink only NETLINK_ROUTE is let through", ((0, "&", 16, LOW), (2, "!=", 0, 0))),
    # The kernel turns (AF_INET, SOCK_PACKET) into AF_PACKET.
    ("socket", EAFNOSUPPORT, "SOCK_PACKET is AF_PACKET by another name", ((0, "&", 2, LOW), (1, "&", 10, 0xF))),
    ("socketpair", EAFNOSUPPORT, "pairs exist for AF_UNIX", ((0, "!=", 1, 0),)),
    *((name, EPERM, _SETUID, ((place, "&", S_ISUID, S_ISUID),)) for name, place in MODES),
    *(
        (name, EPERM, _SETUID, ((place, "&", making, making), (place + 1, "&", S_ISUID, S_ISUID)))
        for name, place in (("open", 1), ("openat", 2))
        for making in (O_CREAT, O_TMPFILE)
    ),
)
"""(name, errno, reason, conditions): refused when every condition (argument, operator, value, mask) holds.
``&``: argument & mask == value; ``>`` and ``!=``: all 64 bits, unsigned."""

STRICT_ALLOW: tuple[str, ...] = (
    # files
    "read write open close stat fstat lstat lseek pread64 pwrite64 readv writev preadv pwritev preadv2"
    " pwritev2 access faccessat faccessat2 creat openat newfstatat statx statfs fstatfs truncate"
    " ftruncate fallocate fsync fdatasync sync syncfs sync_file_range fadvise64 readahead copy_file_range"
    " sendfile splice tee dup dup2 dup3 fcntl flock ioctl close_range getdents getdents64 getcwd chdir"
    " fchdir umask cachestat",
    "rename renameat renameat2 mkdir mkdirat rmdir link linkat unlink unlinkat symlink symlinkat readlink"
    " readlinkat chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat mknod mknodat utime utimes"
    " utimensat futimesat setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr"
    " flistxattr removexattr lremovexattr fremovexattr setxattrat getxattrat listxattrat removexattrat"
    " file_getattr file_setattr inotify_init inotify_init1 inotify_add_watch inotify_rm_watch",
    # memory
    "mmap mprotect munmap brk mremap msync mincore madvise mlock mlock2 munlock mlockall munlockall mseal"
    " memfd_create membarrier mbind get_mempolicy set_mempolicy pkey_alloc pkey_free pkey_mprotect"
    " map_shadow_stack shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv"
    " msgctl",
    # waiting
    "poll ppoll select pselect6 pause epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait"
    " epoll_pwait2 eventfd eventfd2 signalfd signalfd4 pipe pipe2 futex futex_waitv futex_wait futex_wake"
    " futex_requeue set_robust_list get_robust_list nanosleep clock_nanosleep clock_gettime clock_getres"
    " gettimeofday time times alarm getitimer setitimer timer_create timer_settime timer_gettime"
    " timer_getoverrun timer_delete timerfd_create timerfd_settime timerfd_gettime sched_yield rseq"
    " rseq_slice_yield getrandom",
    # processes
    "clone fork vfork execve execveat exit exit_group wait4 waitid kill tkill tgkill pidfd_open"
    " pidfd_send_signal rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait"
    " rt_sigqueueinfo rt_tgsigqueueinfo rt_sigsuspend sigaltstack restart_syscall unshare getpid getppid"
    " gettid getpgrp getpgid setpgid getsid setsid getuid geteuid getgid getegid getresuid getresgid"
    " getgroups setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capget"
    " capset getrlimit setrlimit prlimit64 getrusage getpriority setpriority ioprio_get ioprio_set"
    " sched_getaffinity sched_setaffinity sched_getattr sched_setattr sched_getparam sched_setparam"
    " sched_getscheduler sched_setscheduler sched_get_priority_max sched_get_priority_min"
    " sched_rr_get_interval getcpu uname sysinfo prctl arch_prctl set_thread_area get_thread_area"
    " set_tid_address seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self uretprobe"
    " uprobe riscv_flush_icache riscv_hwprobe",
    # sockets
    "socket socketpair bind connect listen accept accept4 getsockname getpeername getsockopt setsockopt"
    " shutdown sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg",
)

STRICT_DENY: tuple[tuple[str, str], ...] = (
    ("looks into or steers other programs", "ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd"),
    ("looks into or steers other programs", "process_madvise process_mrelease"),
    ("weakens address randomisation", "personality"),
    ("changes the host name or terminal", "sethostname setdomainname vhangup"),
    ("watches whole mounts", "fanotify_init fanotify_mark"),
    ("lists mounts, namespaces or security modules", "statmount listmount listns"),
    ("lists mounts, namespaces or security modules", "lsm_get_self_attr lsm_set_self_attr lsm_list_modules"),
    ("moves memory between nodes", "migrate_pages move_pages set_mempolicy_home_node remap_file_pages"),
    ("memory that can't be inspected, or lent without a copy", "memfd_secret vmsplice"),
    ("rarely used kernel queues", "io_setup io_destroy io_getevents io_pgetevents io_submit io_cancel"),
    ("rarely used kernel queues", "mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr"),
)
"""(reason, names): known calls that ``strict`` answers with EPERM."""

FIRST_COMMON = 424
COMMON: str = (
    "pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen"
    " fsconfig fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2"
    " process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule"
    " landlock_restrict_self memfd_secret process_mrelease futex_waitv set_mempolicy_home_node cachestat"
    " fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount"
    " lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat"
    " removexattrat open_tree_attr file_getattr file_setattr listns rseq_slice_yield"
)
"""Calls from number 424 on, in order: they have one number on all architectures of ``ARCHES``, so that a call
which an older libseccomp does not know by name is still refused."""

ARCH_ONLY = {"x86_64": {"uretprobe": 335, "uprobe": 336}, "riscv64": {"riscv_hwprobe": 258}}
"""Numbers of calls that one architecture has and an older libseccomp does not know."""

STRAY_X32 = range(512, 548)
"""Numbers meant for x32, which kernels before 5.4 also answered without the x32 bit: 514 is an ioctl that the
rules above would not see. ENOSYS on x86_64; no other call has these numbers."""
