"""Endpoints for blobs: working directories on their way from a client to the nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response

from tidegate_gateway.http.errors import ApiError, ProblemsError, json_response
from tidegate_gateway.http.params import Parameters
from tidegate_gateway.http.state import gateway_of
from tidegate_gateway.submission.bounds import DIGEST
from tidegate_gateway.submission.problems import Problem


def _digest(request: Request) -> str:
    Parameters(request).done()
    digest = request.path_params["digest"]
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise ProblemsError([Problem("$", "the path names no blob", "/v1/blobs/ and a sha256: 64 of 0-9 a-f")])
    return digest


async def put(request: Request) -> Response:
    """PUT /v1/blobs/{digest}."""
    gateway, digest = gateway_of(request), _digest(request)
    stream: AsyncIterator[bytes] = request.stream()
    try:
        stored = await gateway.blobs.put(digest, stream)
    except ClientDisconnect as error:
        raise ApiError(400, "disconnected", "the client left while it was sending", "the whole blob") from error
    answer = {"sha256": digest, "size_bytes": stored.size_bytes}
    return json_response(answer, 201 if stored.created else 200)


async def get(request: Request) -> Response:
    """GET and HEAD /v1/blobs/{digest}."""
    gateway, digest = gateway_of(request), _digest(request)
    path = gateway.blobs.path(digest)
    if not path.is_file():
        raise ApiError(404, "unknown_blob", "there is no blob with this digest", "the digest of an uploaded blob")
    return FileResponse(path, media_type="application/octet-stream", headers={"etag": f'"{digest}"'})
