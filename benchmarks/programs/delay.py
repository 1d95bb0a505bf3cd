"""Pass bytes on to other addresses and back, each after a time: hosts that are far away.

    python delay.py MILLISECONDS PORT=ADDRESS:PORT ...

MILLISECONDS is of one direction. Prints `ready` once it listens, on 127.0.0.1. A connection is accepted at once and
begins after a round trip, as a handshake over the whole way would.
"""

import asyncio
import sys


async def pass_on(reader, writer, seconds):
    """Each piece goes `seconds` after it came; pieces do not wait for each other."""
    loop = asyncio.get_running_loop()
    pieces = asyncio.Queue()

    async def send():
        while True:
            at, piece = await pieces.get()
            await asyncio.sleep(max(0.0, at - loop.time()))
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    try:
        while piece := await reader.read(65536):
            pieces.put_nowait((loop.time() + seconds, piece))
    finally:
        pieces.put_nowait((loop.time() + seconds, b""))
        await sending


async def join(reader, writer, address, seconds):
    await asyncio.sleep(2 * seconds)
    their_reader, their_writer = await asyncio.open_connection(*address)
    both = pass_on(reader, their_writer, seconds), pass_on(their_reader, writer, seconds)
    await asyncio.gather(*both, return_exceptions=True)  # whichever end has gone, the other hears of it
    for end in (writer, their_writer):
        end.close()


async def main(milliseconds, *ways):
    for way in ways:
        port, _, target = way.partition("=")
        host, _, their_port = target.rpartition(":")

        def joined(reader, writer, address=(host, int(their_port))):
            return join(reader, writer, address, float(milliseconds) / 1000)

        await asyncio.start_server(joined, "127.0.0.1", int(port))
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
