"""From bytes to a request and from an answer to bytes, in the protocol of each service, as its description has it."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from botocore.model import ServiceModel
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.serialize import XFormedAttributePicker, get_serializer_class
from moto.core.utils import get_service_model
from moto.ec2.responses import EC2Response

from tests.fakes.aws.requests import Answer, Kept, Refusal, Request

MODELS = {"servicequotas": "service-quotas"}
"""Where a service is not called as it signs."""
JSON = ("servicequotas", "ssm", "pricing", "freetier")
FORMS = ("ec2", "sts", "iam")
_SCOPE = re.compile(r"(?:Credential=)?([^/\s=]+)/\d{8}/([^/]+)/([^/]+)/aws4_request")


@cache
def _model(service: str) -> ServiceModel:
    """Read once: botocore's description of EC2 alone is megabytes, and all fakes of a process would read it at once."""
    return get_service_model(MODELS.get(service, service))


def read(method: str, target: str, headers: Mapping[str, str], raw: bytes) -> Request:
    parts = urlsplit(target)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    scope = _SCOPE.search(headers.get("authorization") or unquote(query.get("X-Amz-Credential", "")))
    key, region, service = scope.groups() if scope else ("", "us-east-1", "s3")
    request = Request(service, "", region, {}, method, target, dict(headers), raw, key=key)
    if service in FORMS:
        request.form = dict(parse_qsl(raw.decode(), keep_blank_values=True)) or query
        request.action = request.form.get("Action", "")
        request.parameters = _parse(request, "ec2" if service == "ec2" else "query")
    elif service in JSON:
        request.action = headers.get("x-amz-target", "").rpartition(".")[2]
        request.parameters = json.loads(raw or b"{}")
    elif service == "s3":
        request.action, request.parameters = _of_s3(method, unquote(parts.path), query, headers)
    return request


def _parse(request: Request, protocol: str) -> dict[str, Any]:
    model = _model(request.service)
    if request.action not in model.operation_names:
        return dict(request.form)
    parser = PROTOCOL_PARSERS[protocol](model.operation_model(request.action))
    values: Any = request.form
    document: dict[str, Any] = parser.parse({"values": values})
    return document


def _of_s3(method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    bucket, _, key = path.lstrip("/").partition("/")
    parameters: dict[str, Any] = {"Bucket": bucket, "Key": key}
    names = {"uploadId": "UploadId", "partNumber": "PartNumber", "prefix": "Prefix"}
    parameters |= {to: query[name] for name, to in names.items() if name in query}
    if not bucket:
        return "ListBuckets", {}
    if not key:
        listing = "ListMultipartUploads" if "uploads" in query else "ListObjectsV2"
        posted = "DeleteObjects" if "delete" in query else "PostObject"
        return {"GET": listing, "PUT": "CreateBucket", "HEAD": "HeadBucket", "POST": posted}.get(
            method, "DeleteBucket"
        ), parameters
    if "uploads" in query:
        return "CreateMultipartUpload", parameters
    if "uploadId" in query:
        return {"PUT": "UploadPart", "POST": "CompleteMultipartUpload", "GET": "ListParts"}.get(
            method, "AbortMultipartUpload"
        ), parameters
    put = "CopyObject" if "x-amz-copy-source" in headers else "PutObject"
    return {"GET": "GetObject", "HEAD": "HeadObject", "PUT": put}.get(method, "DeleteObject"), parameters


_TOLD = {
    path: change
    for path, change in EC2Response.RESPONSE_KEY_PATH_TO_TRANSFORMER.items()
    if not path.startswith("RunInstances.")  # there moto says `pending`, whatever is so
}


def result(request: Request, data: Any) -> Answer:
    """`data` is as boto3 will hand it out, or Kept."""
    model = _model(request.service)
    protocol = "json" if request.service in JSON else "ec2" if request.service == "ec2" else "query"
    picker, thing = None, data
    if isinstance(data, Kept):
        picker, thing = XFormedAttributePicker(response_transformers=_TOLD), data.thing
    serializer = get_serializer_class(str(model.service_name), protocol)(
        model.operation_model(request.action), value_picker=picker
    )
    made = serializer.serialize(thing)
    body = made["body"]
    headers = {str(name): str(value) for name, value in made["headers"].items()}
    return Answer(made["status_code"], body if isinstance(body, bytes) else str(body).encode(), headers)


def refusal(request: Request, error: Refusal) -> Answer:
    one, code, said = str(uuid.uuid4()), error.code, error.message
    if request.service in JSON:
        body = json.dumps({"__type": code, "message": said, "Message": said})
        headers = {"Content-Type": "application/x-amz-json-1.1", "x-amzn-RequestId": one}
        return Answer(error.http, body.encode(), headers, code)
    inner = f"<Code>{escape(code)}</Code><Message>{escape(said)}</Message>"
    if request.service == "ec2":
        body = f"<Response><Errors><Error>{inner}</Error></Errors><RequestID>{one}</RequestID></Response>"
    elif request.service in FORMS:
        side = "Receiver" if error.http >= 500 else "Sender"
        body = f"<ErrorResponse><Error><Type>{side}</Type>{inner}</Error><RequestId>{one}</RequestId></ErrorResponse>"
    else:
        body = f"<Error>{inner}<RequestId>{one}</RequestId></Error>"
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return Answer(error.http, (head + body).encode(), {"Content-Type": "text/xml;charset=UTF-8"}, code)
