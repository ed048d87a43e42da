"""Messages between supervisor and keeper, over real pipes and sockets."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.sandbox.messages import INLINE, MAX_FDS, receive, receive_job, send, send_job

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.binary(max_size=20)
    | st.text(max_size=10)
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def test_messages_come_one_by_one_and_then_the_end():
    read, write = os.pipe()
    for number in range(3):
        send(write, {"kind": "ended", "status": number})
    os.close(write)
    assert [receive(read) for _ in range(4)] == [*({"kind": "ended", "status": n} for n in range(3)), None]
    os.close(read)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=4))
def test_a_message_comes_as_it_was_sent(message):
    read, write = os.pipe()
    try:
        send(write, message)
        assert receive(read) == message
    finally:
        os.close(read)
        os.close(write)


def test_a_message_cut_short_in_its_header_is_the_end():
    read, write = os.pipe()
    os.write(write, b"\x01\x00")
    os.close(write)
    assert receive(read) is None
    os.close(read)


@pytest.mark.parametrize("size", [0, 10, INLINE - 100, INLINE, INLINE + 1, 1 << 20])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_job_of_any_size_comes_with_its_descriptors(pair, size, count):
    files = [os.memfd_create(f"file-{number}") for number in range(count)]
    for number, fd in enumerate(files):
        os.write(fd, b"%d" % number)
    job = {"argv": [os.urandom(size)], "confined": True}
    send_job(pair[0], job, files)
    received = receive_job(pair[1])
    assert received is not None
    found, fds = received
    assert found == job
    assert [os.pread(fd, 10, 0) for fd in fds] == [b"%d" % number for number in range(count)]
    assert all(not os.get_inheritable(fd) for fd in fds)
    for fd in (*files, *fds):
        os.close(fd)


def test_the_most_descriptors_come_through(pair):
    null = os.open("/dev/null", os.O_RDONLY)
    for size in (1, INLINE * 2):
        send_job(pair[0], {"data": bytes(size)}, [null] * MAX_FDS)
        _job, fds = receive_job(pair[1])
        assert len(fds) == MAX_FDS
        for fd in fds:
            os.close(fd)
    os.close(null)


def test_the_other_end_being_gone_is_the_end(pair):
    ours, theirs = pair
    ours.close()
    assert receive_job(theirs) is None


def test_a_keeper_that_is_gone_is_an_error_for_the_sender(pair):
    ours, theirs = pair
    theirs.close()
    with pytest.raises(OSError, match=r"Broken pipe|Transport endpoint|Connection"):
        send_job(ours, {"a": 1}, [])


def test_a_large_job_leaves_no_descriptor_behind(pair):
    before = len(os.listdir("/proc/self/fd"))
    send_job(pair[0], {"data": bytes(1 << 20)}, [])
    receive_job(pair[1])
    assert len(os.listdir("/proc/self/fd")) == before
