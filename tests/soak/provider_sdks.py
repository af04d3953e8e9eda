"""The official SDKs of other providers, unmodified, against the emulator: `python provider_sdks.py NAME URL`.

It runs in an environment of its own, which has these SDKs and nothing of orch. It writes what it saw as JSON.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen


def mistral(url: str) -> dict[str, Any]:
    """Upload, create, list, wait for, read, cancel and delete jobs with `mistralai`."""
    from mistralai.client import Mistral
    from mistralai.client.errors import SDKError

    body = {"max_tokens": 20, "messages": [{"role": "user", "content": "What is the best French cheese?"}]}
    lines = [json.dumps({"custom_id": f"row {number}", "body": body}) for number in range(3)]
    with Mistral(api_key="sdk", server_url=url.removesuffix("/v1")) as client:
        file = {"file_name": "in.jsonl", "content": "\n".join(lines).encode()}
        uploaded = client.files.upload(file=file, purpose="batch")
        job = client.batch.jobs.create(
            input_files=[uploaded.id],
            model="mistral-small-latest",
            endpoint="/v1/chat/completions",
            metadata={"of": "a test"},
        )
        listed = client.batch.jobs.list(page=0, page_size=10).data or []
        statuses = [job.status]
        while job.status in ("QUEUED", "RUNNING"):
            time.sleep(0.1)
            job = client.batch.jobs.get(job_id=job.id)
            statuses += [job.status] if job.status != statuses[-1] else []
        output = client.files.download(file_id=job.output_file).read()
        try:
            client.batch.jobs.cancel(job_id=job.id)
            refused = 0
        except SDKError as error:
            refused = error.status_code
        asked = client.chat.complete(model="mistral-small-latest", **body)
        deleted = client.files.delete(file_id=uploaded.id).deleted
        return {
            "listed": [one.id for one in listed] == [job.id],
            "metadata": job.metadata,
            "statuses": statuses,
            "counts": [job.total_requests, job.succeeded_requests, job.failed_requests],
            "ids": sorted(json.loads(line)["custom_id"] for line in output.splitlines()),
            "text": asked.choices[0].message.content,
            "files": sorted(one.sample_type for one in client.files.list(purpose="batch").data),
            "refused": refused,
            "deleted": deleted,
        }


def gemini(url: str) -> dict[str, Any]:
    """Upload, create, list, wait for, read, cancel and delete batches with `google-genai`."""
    from google import genai
    from google.genai.errors import APIError

    address = {"base_url": url.removesuffix("v1beta"), "api_version": "v1beta"}
    client = genai.Client(api_key="sdk", vertexai=False, http_options=address)
    model = "gemini-3.8-flash"
    turn = {"role": "user", "parts": [{"text": "What is the best French cheese?"}]}
    lines = [{"key": f"row {number}", "request": {"contents": [turn]}} for number in range(3)]
    content = "\n".join(json.dumps(line) for line in lines).encode()
    uploaded = client.files.upload(file=io.BytesIO(content), config={"display_name": "in", "mime_type": "jsonl"})
    job = client.batches.create(model=model, src=uploaded.name, config={"display_name": "of a test"})
    listed = [one.name for one in client.batches.list()]
    states = [job.state.name]
    while job.state.name in ("JOB_STATE_PENDING", "JOB_STATE_RUNNING"):
        time.sleep(0.1)
        job = client.batches.get(name=job.name)
        states += [job.state.name] if job.state.name != states[-1] else []
    output = client.files.download(file=job.dest.file_name)
    try:
        client.batches.cancel(name=job.name)
        refused = 0
    except APIError as error:
        refused = error.code
    asked = client.models.generate_content(model=model, contents="What is the best French cheese?")
    client.files.delete(name=uploaded.name)
    client.batches.delete(name=job.name)
    rows = [json.loads(line) for line in output.splitlines()]
    return {
        "listed": listed == [job.name],
        "name": job.display_name,
        "states": states,
        "ids": sorted(row["key"] for row in rows),
        "texts": sorted({row["response"]["candidates"][0]["content"]["parts"][0]["text"][:7] for row in rows}),
        "text": asked.text,
        "tokens": asked.usage_metadata.prompt_token_count,
        "refused": refused,
        "left": [one.name for one in client.batches.list()],
    }


def vertex(url: str) -> dict[str, Any]:
    """Create, list, wait for, cancel and delete jobs with `google-genai`; files go by Cloud Storage's own calls."""
    import hashlib
    import urllib.request

    from google import genai
    from google.genai.errors import APIError
    from google.oauth2.credentials import Credentials

    def bucket(method: str, path: str, body: bytes | None = None) -> bytes:
        head = {"Authorization": "Bearer sdk", "Content-Type": "application/jsonl"}
        with urllib.request.urlopen(urllib.request.Request(f"{url}{path}", body, head, method=method)) as answer:
            content: bytes = answer.read()
            return content

    client = genai.Client(
        vertexai=True,
        project=f"project-{hashlib.sha256(b'sdk').hexdigest()[:12]}",
        location="us-central1",
        credentials=Credentials("sdk"),
        http_options={"base_url": url},
    )
    model, place = "gemini-3.8-flash", "/storage/v1/b/night-batches/o"
    turn = {"role": "user", "parts": [{"text": "What is the best French cheese?"}]}
    lines = "".join(json.dumps({"request": {"contents": [turn]}}) + "\n" for _ in range(3))
    bucket("POST", f"/upload{place}?uploadType=media&name=sdk/in.jsonl", lines.encode())
    config = {"display_name": "of a test", "dest": "gs://night-batches/sdk/out"}
    job = client.batches.create(model=model, src="gs://night-batches/sdk/in.jsonl", config=config)
    listed = [one.name for one in client.batches.list()]
    states = [job.state.name]
    while job.state.name in ("JOB_STATE_PENDING", "JOB_STATE_RUNNING"):
        time.sleep(0.1)
        job = client.batches.get(name=job.name)
        states += [job.state.name] if job.state.name != states[-1] else []
    folder = job.output_info.gcs_output_directory.removeprefix("gs://night-batches/")
    objects = json.loads(bucket("GET", f"{place}?prefix={urllib.parse.quote(folder, safe='')}"))["items"]
    output = bucket("GET", f"{place}/{urllib.parse.quote(objects[0]['name'], safe='')}?alt=media")
    try:
        client.batches.cancel(name=job.name)
        refused = 0
    except APIError as error:
        refused = error.code
    asked = client.models.generate_content(model=model, contents="What is the best French cheese?")
    client.batches.delete(name=job.name)
    rows = [json.loads(line) for line in output.splitlines()]
    return {
        "listed": listed == [job.name],
        "name": job.display_name,
        "states": states,
        "counts": job.completion_stats.successful_count,
        "files": [one["name"].rpartition("/")[2] for one in objects],
        "echoes": len(rows),
        "texts": sorted({row["response"]["candidates"][0]["content"]["parts"][0]["text"][:7] for row in rows}),
        "text": asked.text,
        "models": model in [one.name.rpartition("/")[2] for one in client.models.list()],
        "refused": refused,
        "left": [one.name for one in client.batches.list()],
    }


def together(url: str) -> dict[str, Any]:
    """Upload, create, list, wait for, read, cancel and delete batches with `together`."""
    from together import APIStatusError, Together

    model, messages = "m", [{"role": "user", "content": "What is the best French cheese?"}]
    body = {"model": model, "max_tokens": 20, "messages": messages}
    lines = [json.dumps({"custom_id": f"row {number}", "body": body}) for number in range(3)]
    with TemporaryDirectory() as folder, Together(api_key="sdk", base_url=url.removesuffix("/v1")) as client:
        path = Path(folder) / "in.jsonl"
        path.write_text("\n".join(lines), encoding="utf-8")
        uploaded = client.files.upload(path, purpose="batch-api", check=False)
        again = client.files.upload(path, purpose="batch-api", check=False)
        made = client.batches.create(endpoint="/v1/chat/completions", input_file_id=uploaded.id)
        batch = made.job
        listed = client.batches.list()
        statuses = [batch.status]
        while batch.status in ("VALIDATING", "IN_PROGRESS"):
            time.sleep(0.1)
            batch = client.batches.retrieve(batch.id)
            statuses += [batch.status] if batch.status != statuses[-1] else []
        output = client.files.content(batch.output_file_id).read()
        try:
            client.batches.cancel(batch.id)
            refused = 0
        except APIStatusError as error:
            refused = error.status_code
        asked = client.chat.completions.create(model=model, messages=messages, max_tokens=20)
        return {
            "listed": [one.id for one in listed] == [batch.id],
            "is_one_file": again.id == uploaded.id == batch.input_file_id,
            "statuses": statuses,
            "progress": batch.progress,
            "ids": sorted(json.loads(line)["custom_id"] for line in output.splitlines()),
            "text": asked.choices[0].message.content,
            "files": sorted(one.purpose for one in client.files.list().data),
            "refused": refused,
            "deleted": client.files.delete(uploaded.id).deleted,
        }


def fireworks(url: str) -> dict[str, Any]:
    """Make datasets and jobs, list, wait for, read and delete them with `fireworks-ai`."""
    from fireworks import APIStatusError, Fireworks

    body = {"max_tokens": 20, "messages": [{"role": "user", "content": "What is the best French cheese?"}]}
    lines = [json.dumps({"custom_id": f"row {number}", "body": body}) for number in range(3)]
    model = "accounts/fireworks/models/m"
    with Fireworks(api_key="sdk", account_id="a", base_url=url) as client:
        client.datasets.create(dataset_id="in", dataset={"user_uploaded": {}, "example_count": "3"})
        client.datasets.upload("in", file=("in.jsonl", "\n".join(lines).encode()))
        dataset = client.datasets.get("in")
        wanted: dict[str, Any] = {"batch_inference_job_id": "mine", "model": model, "input_dataset_id": dataset.name}
        job = client.batch_inference_jobs.create(**wanted)
        try:
            client.batch_inference_jobs.create(**wanted)
            again = 0
        except APIStatusError as error:
            again = error.status_code
        states = [job.state]
        while job.state in ("JOB_STATE_VALIDATING", "JOB_STATE_RUNNING", "JOB_STATE_WRITING_RESULTS"):
            time.sleep(0.1)
            job = client.batch_inference_jobs.get("mine")
            states += [job.state] if job.state != states[-1] else []
        results = job.output_dataset_id.rpartition("/")[2]
        urls = client.datasets.get_download_endpoint(results).filename_to_signed_urls
        output = next(address for name, address in urls.items() if name.endswith("/BIJOutputSet.jsonl"))
        answers = [json.loads(line) for line in urlopen(output).read().splitlines()]
        client.batch_inference_jobs.delete("mine")
        for name in ("in", results):
            client.datasets.delete(name)
        return {
            "again": again,
            "states": states,
            "state_of_input": dataset.state,
            "listed": len(list(client.batch_inference_jobs.list())),
            "counts": [job.job_progress.total_input_requests, job.job_progress.successfully_processed_requests],
            "ids": sorted(one["custom_id"] for one in answers),
            "text": answers[0]["response"]["choices"][0]["message"]["content"],
            "left": len(list(client.datasets.list())),
        }


def cohere(url: str) -> dict[str, Any]:
    """Make a dataset and batches, list, wait for, read, save and cancel them with `cohere`."""
    import cohere as sdk

    body = {"max_tokens": 20, "messages": [{"role": "user", "content": [{"type": "text", "text": "A cheese?"}]}]}
    lines = [json.dumps({"custom_id": f"row {number}", "body": body}) for number in range(3)]
    client = sdk.ClientV2(api_key="sdk", base_url=url)
    made = client.datasets.create(
        name="in", type="batch-chat-v2-input", data=("in.jsonl", "\n".join(lines).encode(), "application/jsonl")
    )
    dataset = client.wait(made, interval=0.1).dataset
    wanted = {"name": "of-a-test", "input_dataset_id": dataset.id, "model": "command-a-03-2025"}
    batch = client.batches.create(request=wanted).batch
    listed = client.batches.list(page_size=10, order_by="created_at")
    statuses = [batch.status]
    while batch.status in ("BATCH_STATUS_QUEUED", "BATCH_STATUS_IN_PROGRESS"):
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id).batch
        statuses += [batch.status] if batch.status != statuses[-1] else []
    results = client.datasets.get(batch.output_dataset_id).dataset
    with TemporaryDirectory() as folder:
        client.utils.save_dataset(results, f"{folder}/out.jsonl")
        rows = [json.loads(line) for line in Path(folder, "out.jsonl").read_text().splitlines()]
    billed = [row["body"]["usage"]["billed_units"] for row in rows]
    second = client.batches.create(request=wanted).batch
    client.batches.cancel(second.id)
    cancelled = client.batches.retrieve(second.id).batch.status
    try:
        client.batches.cancel(batch.id)
        refused = 0
    except sdk.core.ApiError as error:
        refused = error.status_code
    for name in (dataset.id, results.id):
        client.datasets.delete(name)
    return {
        "states": statuses,
        "type": results.dataset_type,
        "listed": [one.name for one in listed.batches],
        "counts": [batch.num_records, batch.num_successful_records, batch.num_failed_records],
        "billed": int(batch.input_tokens) == sum(one["input_tokens"] for one in billed),
        "ids": sorted(row["custom_id"] for row in rows),
        "ends": sorted({row["body"]["finish_reason"] for row in rows}),
        "text": rows[0]["body"]["message"]["content"][0]["text"],
        "cancelled": cancelled in ("BATCH_STATUS_CANCELING", "BATCH_STATUS_CANCELED"),
        "refused": refused,
        "left": len(client.datasets.list(dataset_type="batch-chat-v2-input").datasets),
        "models": [one.name for one in client.models.list(page_size=5).models],
    }


def xai(url: str) -> dict[str, Any]:
    """Create, list, wait for, read and cancel batches with `xai-sdk`; a front passes its gRPC on as REST."""
    import urllib.request
    from concurrent import futures

    import grpc
    from google.protobuf.json_format import ParseDict
    from xai_sdk import Client
    from xai_sdk.proto import batch_pb2, batch_pb2_grpc

    def rest(method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        head = {"Authorization": "Bearer sdk", "Content-Type": kind}
        with urllib.request.urlopen(urllib.request.Request(f"{url}{path}", data, head, method=method)) as answer:
            return json.loads(answer.read())

    def batch(told: dict[str, Any]) -> Any:
        """Its times are dates in REST."""
        found = {
            name: f"{value}T00:00:00Z" if name.endswith("_time") else value
            for name, value in told.items()
            if value is not None
        }
        return ParseDict(found, batch_pb2.Batch())

    def result(told: dict[str, Any]) -> Any:
        inner = told["batch_result"]
        if "error" in inner:
            content: dict[str, Any] = {"error": inner["error"]}
        else:
            message = inner["response"]["chat_get_completion"]["choices"][0]["message"]
            output = {"message": {"role": "ROLE_ASSISTANT", "content": message["content"]}}
            content = {"response": {"completion_response": {"outputs": [output]}}}
        return ParseDict({"batch_request_id": told["batch_request_id"], **content}, batch_pb2.BatchResult())

    def paged(request: Any) -> str:
        token = f"&pagination_token={request.pagination_token}" if request.pagination_token else ""
        return f"?limit={request.limit or 100}{token}"

    class Front(batch_pb2_grpc.BatchMgmtServicer):  # type: ignore[misc]
        def CreateBatch(self, request: Any, context: Any) -> Any:  # noqa: N802
            return batch(rest("POST", "/batches", {"name": request.name, "input_file_id": request.input_file_id}))

        def GetBatch(self, request: Any, context: Any) -> Any:  # noqa: N802
            return batch(rest("GET", f"/batches/{request.batch_id}"))

        def CancelBatch(self, request: Any, context: Any) -> Any:  # noqa: N802
            return batch(rest("POST", f"/batches/{request.batch_id}:cancel"))

        def ListBatches(self, request: Any, context: Any) -> Any:  # noqa: N802
            told = rest("GET", f"/batches{paged(request)}")
            found = [batch(one) for one in told["batches"]]
            return batch_pb2.ListBatchesResponse(batches=found, pagination_token=told["pagination_token"])

        def ListBatchResults(self, request: Any, context: Any) -> Any:  # noqa: N802
            told = rest("GET", f"/batches/{request.batch_id}/results{paged(request)}")
            found = [result(one) for one in told["results"]]
            return batch_pb2.ListBatchResultsResponse(results=found, pagination_token=told["pagination_token"])

    messages = [{"role": "user", "content": "What is the best French cheese?"}]
    body = {"model": "grok-4.3", "max_tokens": 20, "messages": messages}
    rows = [
        {"custom_id": f"row {number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number in range(3)
    ]
    name = b'--b\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    form = name + "\n".join(map(json.dumps, rows)).encode() + b"\r\n--b--\r\n"
    uploaded = rest("POST", "/files", form, "multipart/form-data; boundary=b")
    server = grpc.server(futures.ThreadPoolExecutor(2))
    batch_pb2_grpc.add_BatchMgmtServicer_to_server(Front(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    client = Client(api_key="sdk", api_host=f"127.0.0.1:{port}", use_insecure_channel=True)
    other = client.batch.create("another", input_file_id=uploaded["id"])
    made = client.batch.create("of a test", input_file_id=uploaded["id"])
    first = client.batch.list(limit=1)
    second = client.batch.list(limit=1, pagination_token=first.pagination_token)
    cancelled = client.batch.cancel(other.batch_id)
    found = client.batch.get(made.batch_id)
    while found.state.num_requests == 0 or found.state.num_pending:
        time.sleep(0.1)
        found = client.batch.get(made.batch_id)
    page = client.batch.list_batch_results(made.batch_id, limit=2)
    rest_of_it = client.batch.list_batch_results(made.batch_id, limit=2, pagination_token=page.pagination_token)
    return {
        "listed": [one.name for one in (*first.batches, *second.batches)],
        "is_cancelled": cancelled.HasField("cancel_time"),
        "file": found.input_file_id == uploaded["id"],
        "counts": [found.state.num_success, found.state.num_error, found.state.num_cancelled],
        "ids": sorted(one.batch_request_id for one in (*page.succeeded, *rest_of_it.succeeded)),
        "last": rest_of_it.pagination_token,
        "texts": sorted({one.response.content[:7] for one in page.succeeded}),
    }


def openrouter(url: str) -> dict[str, Any]:
    """Create, list, wait for, read and delete batches with `openrouter`."""
    from openrouter import OpenRouter
    from openrouter.errors import BatchErrorResponse

    body = {"max_tokens": 20, "messages": [{"role": "user", "content": "What is the best French cheese?"}]}
    requests = [{"custom_id": f"row {number}", "body": body} for number in range(3)]
    with OpenRouter(api_key="sdk", server_url=url) as client:
        running, batch = (
            client.batch.create_batches(
                endpoint="/v1/chat/completions", model="openai/gpt-4o-mini", requests=requests
            )
            for _ in range(2)
        )
        listed = [one.id for one in client.batch.list().result.data]
        try:
            client.batch.delete(id=running.id)
            refused = 0
        except BatchErrorResponse as error:
            refused = error.status_code
        statuses = [batch.status]
        while batch.status in ("validating", "in_progress", "finalizing"):
            time.sleep(0.1)
            batch = client.batch.get_batches(id=batch.id)
            statuses += [batch.status] if batch.status != statuses[-1] else []
        counts = batch.request_counts
        deleted = client.batch.delete(id=batch.id)
        return {
            "listed": listed == [batch.id, running.id],
            "statuses": statuses,
            "counts": [counts.total, counts.completed, counts.failed],
            "ids": sorted(one.custom_id for one in batch.results),
            "codes": sorted({one.response.status_code for one in batch.results}),
            "usage": batch.usage.total_tokens > 0,
            "refused": refused,
            "deleted": deleted.deletion.openrouter,
            "left": [one.id for one in client.batch.list().result.data] == [running.id],
        }


SDKS = {
    "mistral": mistral,
    "gemini": gemini,
    "vertex": vertex,
    "together": together,
    "fireworks": fireworks,
    "cohere": cohere,
    "xai": xai,
    "openrouter": openrouter,
}

if __name__ == "__main__":
    json.dump(SDKS[sys.argv[1]](sys.argv[2]), sys.stdout)
    sys.stdout.flush()
    # google-genai 3.6.1 leaves something behind that the end of the interpreter waits for.
    os._exit(0)
