"""The calls of Bedrock's batch jobs, its bucket and its synchronous endpoint, answered in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any, BinaryIO

import httpx2
from msgspec.structs import replace

from orchestrator.backends import BatchOrder, lenient
from orchestrator.backends.api import ApiAnswer, ApiRefusal, answer_of
from orchestrator.backends.bedrock import answers
from orchestrator.backends.bedrock.clients import CredentialChain, Services
from orchestrator.backends.bedrock.jobs import batch_of, creation, list_of, manifest_of
from orchestrator.backends.bedrock.requests import named_record, record_lines, translate
from orchestrator.backends.buckets import BucketPrefix
from orchestrator.backends.openai_http import converted, path_of
from orchestrator.backends.s3_files import BAD_CREDENTIALS, S3FilesAPI, asked, tag_in
from orchestrator.backends.translated import nothing_sent
from orchestrator.settings.backends import window_seconds

_HOUR = 3600
_JOB = "model-invocation-job"
_NO_KEY = "no-key-is-sent"
_CALLER = "Action=GetCallerIdentity&Version=2011-06-15"
_FORM = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
_OVER = (HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT)
"""HTTP statuses of a stop refused because the job is over, or of a create refused because the job exists."""


class BedrockAPI(S3FilesAPI):
    """Bedrock's calls. `role` is the ARN of the service role for jobs. The role's account owns the bucket."""

    def __init__(
        self, services: Services, chain: CredentialChain, place: BucketPrefix, role: str, silent: float
    ) -> None:
        # Send nothing to a bucket of the same name in another account.
        owner = {"x-amz-expected-bucket-owner": role.split(":")[4]}
        super().__init__(services.bedrock, _NO_KEY, silent, services.bucket, place, owner)
        self._services, self._chain, self._role = services, chain, role

    def close(self) -> None:
        super().close()
        self._services.runtime.close()
        self._services.sts.close()

    def caller(self) -> str | None:
        """Return the AWS account number of the credentials."""
        answer = self._answer(self._services.sts.post("/", content=_CALLER, headers=_FORM))
        return tag_in("Account", answer.content.decode(errors="replace"))

    def models(self) -> ApiAnswer:
        found = self._get("foundation-models")
        told = lenient.mapping(found.json())
        names = [lenient.mapping(one).get("modelId") for one in lenient.entries(told, "modelSummaries")]
        profiles = lenient.mapping(self._get("inference-profiles", maxResults="1000").json())
        for one in map(lenient.mapping, lenient.entries(profiles, "inferenceProfileSummaries")):
            names += [one.get("inferenceProfileId"), one.get("inferenceProfileArn")]
        return answer_of({"data": [{"id": name} for name in names]}, found.headers)

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer:
        return self.put(name, content, record_lines(content)) or nothing_sent(name)

    def delete_file(self, file_id: str) -> None:
        for key in filter(None, (manifest_of(file_id), file_id)):
            super().delete_file(key)

    def content(self, file_id: str) -> AbstractContextManager[Iterator[bytes]]:
        return self.object_lines(file_id, named_record if manifest_of(file_id) is None else answers.result_line)

    def create(self, order: BatchOrder, window: str, kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        job = creation(order, self._place, self._role, window_seconds(window) // _HOUR)
        try:
            made = self._post(_JOB, job)
        except ApiRefusal as refusal:
            # If AWS has forgotten the token, a repeated create fails because the name exists: the first create was
            # carried out.
            if refusal.status not in _OVER or (found := self._named(job)) is None:
                raise
            return answer_of(batch_of(found[1], self._place), found[0].headers, found[0].next_page)
        # The answer is the ARN alone.
        known = {**job, "status": "Submitted"}
        return converted(made, lambda told: batch_of({**known, **told}, self._place) if told else told)

    def _named(self, job: Mapping[str, Any]) -> tuple[ApiAnswer, Mapping[str, Any]] | None:
        listed = self._get("model-invocation-jobs", nameContains=job["jobName"], maxResults="100")
        found = lenient.mapping(listed.json()).get("invocationJobSummaries")
        same = (one for one in map(lenient.mapping, found if isinstance(found, list) else ()))
        ours = (one for one in same if one.get("outputDataConfig") == job["outputDataConfig"])
        return next(((listed, one) for one in ours if one.get("jobName") == job["jobName"]), None)

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        token = {} if after is None else {"nextToken": after}
        answer = self._get(
            "model-invocation-jobs", maxResults=str(limit), sortBy="CreationTime", sortOrder="Descending", **token
        )
        next_page = lenient.name(lenient.mapping(answer.json()).get("nextToken"))
        return replace(converted(answer, lambda told: list_of(told, self._place)), next_page=next_page)

    def batch(self, batch_id: str) -> ApiAnswer:
        return converted(self._get(path_of(_JOB, batch_id)), lambda told: batch_of(told, self._place))

    def cancel(self, batch_id: str) -> None:
        self._cancel(f"{path_of(_JOB, batch_id)}/stop", batch_id, _OVER)

    def ask(self, path: str, body: bytes) -> ApiAnswer:
        request = lenient.mapping(lenient.decode(body))
        path = f"{path_of('model', str(request.get('model', '')))}/converse"
        sent = self._services.runtime.post(path, json=translate(request), timeout=self._patient)
        return converted(
            self._answer(sent), lambda told: answers.completion(told) if isinstance(told, dict) else told
        )

    def _get(self, path: str, **query: str) -> ApiAnswer:
        return self._answer(self._http.get(asked(path, query)))

    def _refusal(self, response: httpx2.Response) -> ApiRefusal:
        refusal = self._aws_refusal(response, response.headers.get("x-amzn-errortype", ""))
        if refusal.status == BAD_CREDENTIALS:
            self._chain.forget()
        return refusal
