"""Parts of an object, sent to addresses that were signed beforehand."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from tests.fakes.aws import FakeAWS


def test_parts_go_to_s3_by_addresses_that_were_signed_at_home_and_end(fake: FakeAWS):
    bucket = fake.bucket("results-of-ours")
    s3 = fake.client("s3", signature_version="s3v4")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="run/1 of 2.tar")["UploadId"]
    parts, content = [], [b"x" * 5 * 1024 * 1024, b"the rest"]
    for number, data in enumerate(content, 1):
        names = {"Bucket": bucket, "Key": "run/1 of 2.tar", "UploadId": upload, "PartNumber": number}
        url = s3.generate_presigned_url("upload_part", Params=names, ExpiresIn=600)
        with urllib.request.urlopen(urllib.request.Request(url, data=data, method="PUT")) as answer:
            parts.append({"ETag": answer.headers["ETag"], "PartNumber": number})
    s3.complete_multipart_upload(Bucket=bucket, Key="run/1 of 2.tar", UploadId=upload, MultipartUpload={"Parts": parts})
    assert fake.objects(bucket) == {"run/1 of 2.tar": b"".join(content)}
    assert [one.action for one in fake.asked("s3:UploadPart")] == ["UploadPart"] * 2
    for spoiled in (url.replace("run/1", "run/2"), url.split("?")[0]):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(spoiled, data=b"mine", method="PUT"))
        assert caught.value.code == 403
    fake.advance(601)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, data=b"late", method="PUT"))
    assert b"Request has expired" in caught.value.read()
    assert fake.objects(bucket) == {"run/1 of 2.tar": b"".join(content)}
