"""An HTTP/2 client that asks for streams and never says that it has read any of them."""

import asyncio
import struct

DATA, HEADERS, SETTINGS, GOAWAY = 0, 1, 4, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """A header field without Huffman coding and without an index (RFC 7541, 6.2.2); both shorter than 127 bytes."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


async def withhold(port, body, streams, seconds):
    """Posts `body` as a chat on so many streams of one connection, with a window of nothing; how long until the
    gateway closed the connection, or `seconds`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    fields = {b":method": b"POST", b":scheme": b"http", b":path": b"/v1/chat/completions", b":authority": b"127.0.0.1"}
    fields[b"content-type"] = b"application/json"
    block = b"".join(literal(name, value) for name, value in fields.items())
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    writer.write(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)))
    for stream in range(1, 2 * streams, 2):
        writer.write(frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, body))
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        async with asyncio.timeout(seconds):
            while head := await reader.read(9):
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == SETTINGS and not head[4] & ACK:
                    writer.write(frame(SETTINGS, ACK, 0))
                elif head[3] == 6 and not head[4] & ACK:
                    writer.write(frame(6, ACK, 0, bytes(8)))
    except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()
    return loop.time() - begun
