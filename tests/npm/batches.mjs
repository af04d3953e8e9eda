// Drives the official openai package against a running server, as a user's program would, step by step:
//
//     node batches.mjs PACKAGE BASE_URL
//
// writes the name of each step that went well to stdout, one a line, and ends with 1 at the first that does not.
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

const [name, baseURL] = process.argv.slice(2);
const { default: OpenAI, toFile } = await import(name);
const client = new OpenAI({ apiKey: "local", baseURL, timeout: 20_000 });
const CHAT = "/v1/chat/completions";
const ENDS = ["completed", "failed", "expired", "cancelled"];

const row = (customId, text = customId) => ({
  custom_id: customId,
  method: "POST",
  url: CHAT,
  body: { model: "test-model", user: customId, messages: [{ role: "user", content: text }] },
});
const jsonl = (rows) => rows.map((one) => JSON.stringify(one) + "\n").join("");
const parsed = (text) => text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
const upload = async (rows) =>
  client.files.create({ file: await toFile(Buffer.from(jsonl(rows)), "in.jsonl"), purpose: "batch" });
const begin = async (rows, more = {}) =>
  client.batches.create({
    input_file_id: (await upload(rows)).id, endpoint: CHAT, completion_window: "24h", ...more,
  });
const content = async (fileId) => parsed(await (await client.files.content(fileId)).text());

async function every(pages) {
  const found = [];
  for await (const one of pages) found.push(one);
  return found;
}

async function until(batchId, isThere) {
  for (;;) {
    const batch = await client.batches.retrieve(batchId);
    if (isThere(batch)) return batch;
    await sleep(20);
  }
}

async function refused(call, kind, expected) {
  const error = await call().then(() => assert.fail("it was not refused"), (reason) => reason);
  assert(error instanceof kind, `${error}`);
  for (const [field, value] of Object.entries(expected)) assert.deepEqual(error[field], value, `${field}: ${error}`);
  assert.match(error.requestID, /^req_/);
  return error;
}

const steps = {
  async models() {
    assert.deepEqual((await every(client.models.list())).map((model) => model.id), ["test-model"]);
  },

  async "files: create, retrieve, content, delete"() {
    const text = jsonl([row("ä 名 \u0000 \"quoted\""), row("b")]);
    const made = await client.files.create({
      file: await toFile(Buffer.from(text), "in.jsonl"),
      purpose: "batch",
      expires_after: { anchor: "created_at", seconds: 3600 },
    });
    assert.match(made.id, /^file-/);
    assert.deepEqual(
      [made.object, made.bytes, made.filename, made.purpose, made.status],
      ["file", Buffer.byteLength(text), "in.jsonl", "batch", "processed"],
    );
    assert.equal(made.expires_at, made.created_at + 3600);
    assert.deepEqual(await client.files.retrieve(made.id), made);
    assert.equal((await client.files.waitForProcessing(made.id)).status, "processed");
    assert.equal(await (await client.files.content(made.id)).text(), text);
    assert.deepEqual(await client.files.delete(made.id), { id: made.id, object: "file", deleted: true });
    await refused(() => client.files.retrieve(made.id), OpenAI.NotFoundError, { status: 404, param: "id" });
  },

  async "files: from a stream, from a Response"() {
    const chunks = new ReadableStream({
      start(controller) {
        for (let n = 0; n < 100; n++) controller.enqueue(new TextEncoder().encode(jsonl([row(`r${n}`)])));
        controller.close();
      },
    });
    for (const source of [new Response(chunks), new Blob([jsonl([row("a")])])]) {
      const made = await client.files.create({ file: await toFile(source, "in.jsonl"), purpose: "batch" });
      assert.equal((await (await client.files.content(made.id)).arrayBuffer()).byteLength, made.bytes);
    }
  },

  async "files: list over pages"() {
    const made = [];
    for (let n = 0; n < 5; n++) made.push((await upload([row(`r${n}`)])).id);
    const pages = await client.files.list({ limit: 2, purpose: "batch" });
    assert.deepEqual([pages.data.length, pages.has_more, pages.hasNextPage()], [2, true, true]);
    const newest = (await every(client.files.list({ limit: 2, purpose: "batch" }))).map((file) => file.id);
    assert.deepEqual(newest.slice(0, 5), made.toReversed());
    const oldest = (await every(client.files.list({ limit: 3, order: "asc" }))).map((file) => file.id);
    assert.deepEqual(oldest.slice(-5), made);
  },

  async "files: refused"() {
    const bad = await toFile(Buffer.from("x"), "in.txt");
    await refused(() => client.files.create({ file: bad, purpose: "batch" }), OpenAI.BadRequestError, {
      type: "invalid_request_error", param: null, code: null,
    });
    const endless = { anchor: "created_at", seconds: 1 };
    await refused(
      async () => client.files.create({ file: await toFile(Buffer.from("x"), "a.jsonl"), purpose: "batch", expires_after: endless }),
      OpenAI.BadRequestError, { status: 400 },
    );
  },

  async "uploads: in parts"() {
    const text = jsonl(Array.from({ length: 300 }, (_, n) => row(`part-${n}`)));
    const half = Math.floor(text.length / 2);
    const upload = await client.uploads.create({
      bytes: text.length, filename: "parts.jsonl", mime_type: "application/jsonl", purpose: "batch",
    });
    assert.deepEqual([upload.object, upload.status, upload.bytes], ["upload", "pending", text.length]);
    // The second part arrives first: the order is that of the ids, not that of the arrival.
    const ids = [];
    for (const [place, piece] of [[1, text.slice(half)], [0, text.slice(0, half)]]) {
      const part = await client.uploads.parts.create(upload.id, { data: await toFile(Buffer.from(piece), "part") });
      assert.deepEqual([part.object, part.upload_id], ["upload.part", upload.id]);
      ids[place] = part.id;
    }
    const complete = await client.uploads.complete(upload.id, { part_ids: ids });
    assert.deepEqual([complete.status, complete.file.bytes], ["completed", text.length]);
    assert.equal(await (await client.files.content(complete.file.id)).text(), text);
    const batch = await client.batches.create({
      input_file_id: complete.file.id, endpoint: CHAT, completion_window: "24h",
    });
    const end = await until(batch.id, (now) => ENDS.includes(now.status));
    assert.deepEqual(end.request_counts, { total: 300, completed: 300, failed: 0 });
  },

  async "uploads: cancel"() {
    const upload = await client.uploads.create({
      bytes: 10, filename: "parts.jsonl", mime_type: "application/jsonl", purpose: "batch",
    });
    assert.equal((await client.uploads.cancel(upload.id)).status, "cancelled");
    await refused(() => client.uploads.complete(upload.id, { part_ids: ["part_1"] }), OpenAI.APIError, {});
  },

  async "batches: to the end, with a row that fails"() {
    const ids = Array.from({ length: 40 }, (_, n) => `row-${n} ä"\\`);
    const rows = ids.map((id, n) => row(id, n === 7 ? "[[fault:status:400]]" : `say ${n}`));
    const made = await begin(rows, { metadata: { job: "npm", "ä": "ö" } });
    assert.match(made.id, /^batch_/);
    assert.deepEqual(
      [made.object, made.status, made.endpoint, made.completion_window, made.errors, made.output_file_id],
      ["batch", "validating", CHAT, "24h", null, null],
    );
    assert.deepEqual(made.metadata, { job: "npm", "ä": "ö" });
    assert.equal(made.expires_at, made.created_at + 86_400);
    const end = await until(made.id, (batch) => ENDS.includes(batch.status));
    assert.equal(end.status, "completed");
    assert.deepEqual(end.request_counts, { total: 40, completed: 39, failed: 1 });
    assert(end.in_progress_at >= end.created_at && end.completed_at >= end.finalizing_at);
    const good = await content(end.output_file_id);
    const failed = await content(end.error_file_id);
    assert.deepEqual(good.concat(failed).map((line) => line.custom_id).sort(), ids.toSorted());
    assert(good.every((line) => line.error === null && line.response.status_code === 200));
    assert.deepEqual(failed.map((line) => [line.custom_id, line.error, line.response.status_code]), [[ids[7], null, 400]]);
    const sum = (read) => good.reduce((total, line) => total + read(line.response.body.usage), 0);
    assert.equal(end.usage.input_tokens, sum((usage) => usage.prompt_tokens));
    assert.equal(end.usage.output_tokens, sum((usage) => usage.completion_tokens));
    assert.equal((await client.files.retrieve(end.output_file_id)).purpose, "batch_output");
  },

  async "batches: bad lines"() {
    const file = await client.files.create({
      file: await toFile(Buffer.from(jsonl([row("a")]) + "{\n" + jsonl([row("a")])), "in.jsonl"), purpose: "batch",
    });
    const batch = await client.batches.create({ input_file_id: file.id, endpoint: CHAT, completion_window: "24h" });
    const end = await until(batch.id, (now) => ENDS.includes(now.status));
    assert.deepEqual([end.status, end.output_file_id, end.error_file_id], ["failed", null, null]);
    assert.deepEqual(
      end.errors.data.map((error) => [error.line, error.code, error.param]),
      [[2, "invalid_json_line", null], [3, "duplicate_custom_id", "custom_id"]],
    );
  },

  async "batches: list over pages"() {
    const made = [];
    for (let n = 0; n < 5; n++) made.push((await begin([row("a")])).id);
    const found = (await every(client.batches.list({ limit: 2 }))).map((batch) => batch.id);
    assert.deepEqual(found.slice(0, 5), made.toReversed());
    assert.equal(new Set(found).size, found.length);
    for (const id of made) await until(id, (batch) => ENDS.includes(batch.status));
  },

  async "batches: cancel"() {
    const made = await begin([row("now"), row("late", "[[fault:slow:600000]]")]);
    await until(made.id, (batch) => batch.request_counts.completed === 1);
    assert.equal((await client.batches.cancel(made.id)).status, "cancelling");
    const end = await until(made.id, (batch) => ENDS.includes(batch.status));
    assert.equal(end.status, "cancelled");
    assert.deepEqual((await content(end.output_file_id)).map((line) => line.custom_id), ["now"]);
    assert.deepEqual(
      (await content(end.error_file_id)).map((line) => [line.custom_id, line.response, line.error.code]),
      [["late", null, "batch_cancelled"]],
    );
    assert.equal((await client.batches.cancel(made.id)).status, "cancelled");
  },

  async "batches: refused"() {
    const done = await until((await begin([row("a")])).id, (batch) => ENDS.includes(batch.status));
    const conflict = await refused(() => client.batches.cancel(done.id), OpenAI.ConflictError, {
      type: "invalid_request_error",
    });
    assert.equal(conflict.headers.get("x-should-retry"), "false");
    await refused(() => client.batches.retrieve("batch_nobody"), OpenAI.NotFoundError, { code: null, param: null });
    const file = done.input_file_id;
    const call = (more) => () =>
      client.batches.create({ input_file_id: file, endpoint: CHAT, completion_window: "24h", ...more });
    await refused(call({ endpoint: "/v1/nothing" }), OpenAI.BadRequestError, { param: "endpoint", code: "invalid_value" });
    await refused(call({ completion_window: "soon" }), OpenAI.BadRequestError, {
      param: "completion_window", code: "invalid_value",
    });
    await refused(call({ input_file_id: undefined }), OpenAI.BadRequestError, {
      param: "input_file_id", code: "missing_required_parameter",
    });
    await refused(call({ metadata: { tags: ["a"] } }), OpenAI.BadRequestError, {
      param: "metadata.tags", code: "invalid_type",
    });
  },

  async "chat: passed through"() {
    const answer = await client.chat.completions.create({
      model: "test-model", messages: [{ role: "user", content: "hello" }],
    });
    assert.match(answer.choices[0].message.content, /^echo:/);
    await refused(
      () => client.chat.completions.create({ model: "test-model", messages: [{ role: "user", content: "[[fault:status:400]]" }] }),
      OpenAI.BadRequestError, { status: 400 },
    );
  },
};

for (const [step, run] of Object.entries(steps)) {
  try {
    await run();
  } catch (error) {
    console.error(`${step}:`, error);
    process.exit(1);
  }
  console.log(step);
}
