"""HTTP as the fakes here serve it: by the server that authors of providers have as well (`gpuops.testing`)."""

from gpuops.commands.prove.fake_server import Answer, Fake, Fault, Handler, Heard, JsonFake, Request, Server, loopback

__all__ = ["Answer", "Fake", "Fault", "Handler", "Heard", "JsonFake", "Request", "Server", "loopback"]
