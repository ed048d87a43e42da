"""Streams over real pipes: caps, feeding, relaying, and what is left when the program is gone."""

from __future__ import annotations

import os
import select
import socket
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.sandbox.streams import CHUNK, Capture, Feed, FileFeed, Relay, waiting, writable


@pytest.fixture
def pipes():
    """A maker of pipes; what a test left open is closed."""
    made = []

    def pipe():
        ends = os.pipe()
        made.extend(ends)
        return ends

    yield pipe
    for fd in made:
        try:
            os.close(fd)
        except OSError:
            pass  # closed by what was tested


def turn(*streams, patience=5000):
    """One round of the supervisor's loop; False when nothing wants to be polled."""
    owners = {fd: (events, stream) for stream in streams for fd, events in stream.interest()}
    if not owners:
        return False
    poll = select.poll()
    for fd, (events, _stream) in owners.items():
        poll.register(fd, events)
    ready = poll.poll(patience)
    assert ready, "nothing happens any more"
    for fd, events in ready:
        owners[fd][1].handle(fd, events)
    return True


def closed(fd):
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False


# --- capture ----------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=12), st.none() | st.integers(0, 60))
def test_the_first_and_the_last_half_are_kept_and_all_is_counted(pieces, cap):
    read, write = os.pipe()
    capture = Capture(read, cap)
    for piece in pieces:
        capture.keep(piece)
    os.close(write)
    capture.finish()
    whole = b"".join(pieces)
    assert capture.total == len(whole)
    if cap is None or len(whole) <= cap:
        assert (capture.data, capture.truncated) == (whole, False)
    else:
        head, tail = (cap + 1) // 2, cap // 2
        assert capture.data == whole[:head] + whole[len(whole) - tail :]
        assert (len(capture.data), capture.truncated) == (cap, True)


def test_a_flood_is_drained_and_takes_no_more_room_than_the_cap(pipes):
    read, write = pipes()
    capture = Capture(read, 1000)
    block = bytes(range(256)) * 64
    for _ in range(200):
        os.write(write, block)
        while waiting(read):
            turn(capture)
        assert len(capture._head) + len(capture._tail) <= 1000 + 6 * CHUNK
    os.close(write)
    while turn(capture):
        pass
    assert (capture.total, capture.data) == (200 * len(block), block[:500] + block[-500:])
    assert closed(read)


def test_the_end_of_the_pipe_ends_the_capture(pipes):
    read, write = pipes()
    capture = Capture(read, None)
    os.write(write, b"abc")
    assert turn(capture)
    os.close(write)
    assert turn(capture)
    assert capture.interest() == []
    assert (capture.data, closed(read)) == (b"abc", True)


def test_what_is_in_the_pipe_is_taken_at_the_end_without_waiting_for_a_survivor(pipes):
    read, write = pipes()
    capture = Capture(read, None)
    os.write(write, b"last words")
    capture.finish()  # the other end is still open
    assert (capture.data, closed(read)) == (b"last words", True)
    capture.finish()
    assert capture.data == b"last words"


def test_a_spurious_wake_up_reads_nothing(pipes):
    read, _write = pipes()
    capture = Capture(read, None)
    capture.handle(read, select.POLLIN)
    assert (capture.total, len(capture.interest())) == (0, 1)


# --- feeding bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4096, 65_536, 65_537, 1_000_000])
def test_all_bytes_arrive_and_then_the_pipe_ends(pipes, size):
    data = os.urandom(size)
    read, write = pipes()
    feed, capture = Feed(write, data), Capture(read, None)
    while turn(feed, capture):
        pass
    assert capture.data == data
    assert closed(write)


def test_small_input_is_written_at_once(pipes):
    read, write = pipes()
    feed = Feed(write, b"event")
    assert (feed.interest(), closed(write)) == ([], True)
    assert os.read(read, 100) == b"event"


def test_a_program_that_does_not_read_is_no_error(pipes):
    read, write = pipes()
    feed = Feed(write, bytes(300_000))
    assert len(feed.interest()) == 1
    os.close(read)
    while turn(feed):
        pass
    assert closed(write)


def test_a_reader_that_is_gone_from_the_start_is_no_error(pipes):
    read, write = pipes()
    os.close(read)
    assert Feed(write, b"x").interest() == []


def test_the_end_of_the_run_ends_the_feeding(pipes):
    _read, write = pipes()
    feed = Feed(write, bytes(300_000))
    feed.finish()
    feed.finish()
    assert (feed.interest(), closed(write)) == ([], True)


# --- feeding a file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 10, 200_000])
def test_a_file_arrives_whole_and_the_place_in_it_is_moved(tmp_path, size):
    data = os.urandom(size)
    (tmp_path / "in").write_bytes(data)
    with open(tmp_path / "in", "rb", buffering=0) as file:
        feed = FileFeed(file.fileno())
        capture = Capture(os.dup(feed.read), None)
        while feed.interest():
            turn(feed, capture)
        while turn(capture):
            pass
        feed.finish()
        assert (capture.data, file.tell()) == (data, size)


def test_what_the_program_did_not_read_is_left_in_the_file(tmp_path):
    (tmp_path / "in").write_bytes(b"first\nsecond\n")
    with open(tmp_path / "in", "rb", buffering=0) as file:
        file.seek(1)
        feed = FileFeed(file.fileno())
        turn(feed)
        assert os.read(feed.read, 5) == b"irst\n"
        feed.finish()
        feed.finish()
        assert file.read() == b"second\n"
    assert closed(feed.fd) or feed.fd == -1


# --- relaying ---------------------------------------------------------------------------------------------


def test_what_the_program_writes_reaches_the_caller(pipes):
    (read, write), (theirs_read, theirs) = pipes(), pipes()
    relay = Relay(read, theirs, ours=read)
    os.write(write, b"hello")
    turn(relay)
    turn(relay)
    assert os.read(theirs_read, 100) == b"hello"
    os.close(write)
    turn(relay)
    assert (relay.interest(), closed(read), closed(theirs)) == ([], True, False)


def test_what_the_caller_writes_reaches_the_program_and_its_end_too(pipes):
    (caller_read, caller), (read, write) = pipes(), pipes()
    relay = Relay(caller_read, write, ours=write)
    os.write(caller, b"question")
    turn(relay)
    turn(relay)
    assert os.read(read, 100) == b"question"
    os.close(caller)
    turn(relay)
    assert (closed(write), closed(caller_read)) == (True, False)
    assert os.read(read, 1) == b""


def test_a_reader_that_went_away_closes_the_programs_pipe(pipes):
    (read, write), (theirs_read, theirs) = pipes(), pipes()
    relay = Relay(read, theirs, ours=read)
    os.close(theirs_read)
    os.write(write, b"x")
    while turn(relay):
        pass
    assert closed(read)
    with pytest.raises(BrokenPipeError):
        os.write(write, b"y")


def test_a_socket_of_the_caller_is_relayed(pipes):
    read, write = pipes()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        relay = Relay(read, ours.fileno(), ours=read)
        os.write(write, b"over the wire")
        turn(relay)
        turn(relay)
        assert theirs.recv(100) == b"over the wire"
        relay.finish()


def test_nothing_is_read_ahead_of_a_reader_that_waits(pipes):
    """One piece is pending at most: the program's writes are held back, as they would be by a plain pipe."""
    (read, write), (_theirs_read, theirs) = pipes(), pipes()
    os.set_blocking(theirs, False)
    os.set_blocking(write, False)
    relay = Relay(read, theirs, ours=read)
    sent = 0
    for _ in range(400):
        try:
            sent += os.write(write, bytes(4096))
        except BlockingIOError:
            break
        poll = select.poll()
        for fd, events in relay.interest():
            poll.register(fd, events)
        for fd, events in poll.poll(0):
            relay.handle(fd, events)
    else:
        pytest.fail("everything was taken though nobody reads")
    assert sent <= 4 * CHUNK
    relay.finish(time.monotonic())
    assert closed(read)


def test_the_rest_of_the_pipe_is_passed_on_at_the_end(pipes):
    (read, write), (theirs_read, theirs) = pipes(), pipes()
    relay = Relay(read, theirs, ours=read)
    os.write(write, b"one")
    turn(relay)
    os.write(write, b" two")
    relay.finish()  # a survivor still holds the other end
    assert os.read(theirs_read, 100) == b"one two"
    assert (closed(read), closed(theirs)) == (True, False)


def test_of_the_callers_input_nothing_more_is_read_at_the_end(pipes):
    (caller_read, caller), (_read, write) = pipes(), pipes()
    relay = Relay(caller_read, write, ours=write)
    os.write(caller, b"for the next program")
    relay.finish()
    assert closed(write)
    assert os.read(caller_read, 100) == b"for the next program"


def test_a_reader_that_never_reads_can_not_hold_up_the_end(pipes):
    (read, write), (_theirs_read, theirs) = pipes(), pipes()
    os.set_blocking(theirs, False)
    try:
        while True:
            os.write(theirs, bytes(4096))
    except BlockingIOError:
        os.set_blocking(theirs, True)
    os.write(write, b"unheard")
    relay = Relay(read, theirs, ours=read)
    relay.finish(time.monotonic())
    assert closed(read)


# --- the two questions ------------------------------------------------------------------------------------


def test_waiting_and_writable(pipes):
    read, write = pipes()
    assert (waiting(read), writable(write, time.monotonic())) == (0, True)
    os.write(write, b"abc")
    assert waiting(read) == 3
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, bytes(4096))
    except BlockingIOError:
        pass
    assert writable(write, time.monotonic()) is False
