"""HTTP as the fakes here serve it: by the server that authors of providers have as well (`gpuops.testing`)."""

from gpuops.commands.prove.fake_server import Fake, Fault, Handler, Heard, Server, loopback

__all__ = ["Fake", "Fault", "Handler", "Heard", "Server", "loopback"]
