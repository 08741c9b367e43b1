// openai-node against the gateway: chats (plain, streamed, `.stream()`, `runTools`) and responses (create, `.stream()`,
// `parse`).

import assert from 'node:assert/strict';
import { existsSync, readFileSync, statSync } from 'node:fs';

import OpenAI from 'openai';
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';

import { FINAL, call, check, equal, plan, results, round, runAll, seen, until } from './checks.mjs';
import { LOOKUP, register, user } from './scenarios.mjs';

const BASE = `${process.env.INTEROP_GATEWAY}/v1`;
const SIGNS = process.env.INTEROP_SIGNS;
const model = 'scripted-1';
const client = (settings = {}) => new OpenAI({ baseURL: BASE, apiKey: 'sk-interop', timeout: 30_000, ...settings });
const lookup = { type: 'function', function: LOOKUP };
const withOwn = (own) => (own ? { tools: [lookup] } : {});

// ---- Three ways of asking: each gives { text, finish, message, calls, tokens } ----------------------------------

function answerOf(completion) {
  const { message, finish_reason: finish } = completion.choices[0];
  const calls = (message.tool_calls ?? []).map((c) => [c.id, c.function.name, JSON.parse(c.function.arguments)]);
  return { text: message.content ?? '', finish, message, calls, tokens: completion.usage?.total_tokens };
}

async function plainly(messages, own) {
  return answerOf(await client().chat.completions.create({ model, messages, ...withOwn(own) }));
}

async function helped(messages, own) {
  const stream_options = { include_usage: true };
  const stream = client().chat.completions.stream({ model, messages, stream_options, ...withOwn(own) });
  return answerOf(await stream.finalChatCompletion());
}

async function streamed(messages, own) {
  const request = { model, messages, stream: true, stream_options: { include_usage: true }, ...withOwn(own) };
  const chunks = [];
  for await (const chunk of await client().chat.completions.create(request)) chunks.push(chunk);
  const choices = chunks.flatMap((chunk) => chunk.choices);
  equal(new Set(chunks.map((chunk) => chunk.id)).size, 1, 'ids of the stream');
  equal(choices.map((c) => c.delta.role).filter(Boolean), ['assistant'], 'roles of the stream');
  const finishes = choices.map((c) => c.finish_reason).filter(Boolean);
  equal(finishes.length, 1, 'finish reasons of the stream');
  const usages = chunks.map((chunk) => chunk.usage).filter(Boolean);
  equal(usages.length, 1, 'usage chunks of the stream');
  const text = choices.map((c) => c.delta.content ?? '').join('');
  const tool_calls = assembled(choices.flatMap((c) => c.delta.tool_calls ?? []));
  const message = { role: 'assistant', content: text, ...(tool_calls.length ? { tool_calls } : {}) };
  const calls = tool_calls.map((c) => [c.id, c.function.name, JSON.parse(c.function.arguments)]);
  return { text, finish: finishes[0], message, calls, tokens: usages[0].total_tokens };
}

/** The calls that the pieces of a stream make up; their indexes count from 0. */
function assembled(pieces) {
  const calls = [];
  for (const piece of pieces) {
    assert.ok(piece.index <= calls.length, `index ${piece.index} leaves a gap`);
    const c = (calls[piece.index] ??= { id: piece.id, type: 'function', function: { name: '', arguments: '' } });
    c.function.name += piece.function?.name ?? '';
    c.function.arguments += piece.function?.arguments ?? '';
  }
  return calls;
}

// ---- The Responses API: messages are items, and an answer is a list of them ----------------------------------------

const itemsOf = (messages, own) => ({ model, input: messages.flat(), ...(own ? { tools: [{ type: 'function', ...LOOKUP }] } : {}) });

function answerOfResponse(response) {
  const own = response.output.filter((item) => item.type === 'function_call');
  const calls = own.map((item) => [item.call_id, item.name, JSON.parse(item.arguments)]);
  const finish = response.status !== 'completed' ? response.status : calls.length ? 'tool_calls' : 'stop';
  return { text: response.output_text, finish, message: response.output, calls, tokens: response.usage.total_tokens };
}

async function created(messages, own) {
  return answerOfResponse(await client().responses.create(itemsOf(messages, own)));
}

async function responsesHelped(messages, own) {
  const stream = client().responses.stream(itemsOf(messages, own));
  let text = '';
  stream.on('response.output_text.delta', (event) => (text += event.delta));
  const response = await stream.finalResponse();
  equal(response.output_text, text, 'text of the deltas and of the response');
  return answerOfResponse(response);
}

async function parsed(messages, own) {
  return answerOfResponse(await client().responses.parse(itemsOf(messages, own)));
}

const tool = (id, content) => ({ role: 'tool', tool_call_id: id, content });
register({ name: 'plain', streamed: false, ask: plainly, tool });
register({ name: 'streamed', streamed: true, ask: streamed, tool });
register({ name: '.stream()', streamed: true, ask: helped, tool });

const output = (id, text) => ({ type: 'function_call_output', call_id: id, output: text });
register({ name: 'responses.create', streamed: false, ask: created, tool: output });
register({ name: 'responses.stream()', streamed: true, ask: responsesHelped, tool: output });
register({ name: 'responses.parse', streamed: false, ask: parsed, tool: output });

// ---- Parsed answers, tools that the SDK runs ------------------------------------------------------------------------

const Answer = z.object({ value: z.string() });

check('chat.completions.parse and responses.parse: a parsed answer after tools of the gateway', async () => {
  const ask = [
    async (text) => {
      const response_format = zodResponseFormat(Answer, 'answer');
      const completion = await client().chat.completions.parse({ model, messages: [user(text)], response_format });
      return completion.choices[0].message.parsed;
    },
    async (text) => {
      const format = zodTextFormat(Answer, 'answer');
      return (await client().responses.parse({ model, input: text, text: { format } })).output_parsed;
    },
  ];
  for (const parse of ask) {
    const { text } = plan(round('', [call('modern__upper', { text: 'a' })]), round('{"value": "A"}'));
    equal(await parse(text), { value: 'A' }, 'what was parsed');
  }
});

for (const stream of [false, true]) {
  check(`runTools${stream ? ', streamed' : ''}: runs its own tool only, in a mixed turn`, async () => {
    const ran = [];
    const own = { ...lookup.function, parse: JSON.parse, function: ({ key }) => (ran.push(key), `value of ${key}`) };
    const calls = [call('lookup', { key: 'b' }), call('modern__upper', { text: 'a' })];
    const { tag, text } = plan(round('', calls), round('', [call('modern__add', { a: 4, b: 5 })]), FINAL);
    const tools = [{ type: 'function', function: own }];
    const runner = client().chat.completions.runTools({ model, messages: [user(text)], tools, stream });
    const wanted = [['lookup', 'value of b'], ['modern__upper', 'A'], ['modern__add', '4 + 5 = 9']];
    equal(results(await runner.finalContent()), wanted, 'results');
    equal(ran, ['b'], 'runs of the own tool');
    equal((await seen(tag)).length, 3, 'requests at the model');
  });
}

// ---- Errors, going away, choosing tools -------------------------------------------------------------------------

async function failure(asking) {
  try {
    await asking();
  } catch (error) {
    return error;
  }
  assert.fail('no exception');
}

const body = (code) => ({ error: { message: `it is ${code}`, type: 'invalid_request_error', param: 'p', code } });

check('errors of the model arrive as the right exceptions', async () => {
  const classes = { 400: 'BadRequestError', 401: 'AuthenticationError', 404: 'NotFoundError', 429: 'RateLimitError' };
  for (const [status, name] of Object.entries(classes)) {
    const headers = { 'retry-after': '1' };
    const { text } = plan(round('', [], { status: Number(status), body: body('wrong'), headers }));
    for (const stream of [false, true]) {
      const request = { model, messages: [user(text)], stream };
      const error = await failure(() => client({ maxRetries: 0 }).chat.completions.create(request));
      assert.ok(error instanceof OpenAI[name], `${status}: ${error}`);
      equal([error.code, error.param, error.status], ['wrong', 'p', Number(status)], 'code, param and status');
      assert.ok(error.requestID, 'no requestID');
    }
  }
});

check("an error in the model's stream is raised with its message", async () => {
  const { text } = plan(round('Some text. ', [], { stream_error: { message: 'overloaded', type: 'server_error' } }));
  const error = await failure(async () => {
    for await (const _ of await client().chat.completions.create({ model, messages: [user(text)], stream: true }));
  });
  assert.match(error.message, /overloaded/);
});

check('a failure after a tool has run is not repeated by the SDK', async () => {
  for (const stream of [false, true]) {
    const sign = `node-once-${process.pid}-${stream}`;
    const { text } = plan(round('', [call('modern__count', { sign })]), round('', [], { status: 500, body: body('broken') }));
    await failure(async () => {
      const answer = await client({ maxRetries: 2 }).chat.completions.create({ model, messages: [user(text)], stream });
      if (stream) for await (const _ of answer);
    });
    equal(readFileSync(`${SIGNS}/${sign}.count`, 'utf8'), 'x', `runs of the tool, stream=${stream}`);
  }
});

check('hanging up while a tool runs cancels the tool', async () => {
  const sign = `node-hang-${process.pid}`;
  const { text } = plan(round('Slowly. ', [call('modern__slow', { sign, seconds: 15 })]), FINAL);
  const stream = await client().chat.completions.create({ model, messages: [user(text)], stream: true });
  await stream[Symbol.asyncIterator]().next();
  await until(() => existsSync(`${SIGNS}/${sign}.started`), 'the tool runs');
  const closed = Date.now();
  stream.controller.abort();
  await until(() => existsSync(`${SIGNS}/${sign}.cancelled`), 'the tool is cancelled');
  const took = statSync(`${SIGNS}/${sign}.cancelled`).mtimeMs - closed;
  assert.ok(took < 1000, `it took ${took} ms`);
});

check('X-Toolway-Tools in defaultHeaders narrows the tools', async () => {
  const { tag, text } = plan(round('Hello.'));
  const narrow = client({ defaultHeaders: { 'X-Toolway-Tools': 'modern__*' } });
  await narrow.chat.completions.create({ model, messages: [user(text)] });
  const [{ tools }] = await seen(tag);
  assert.ok(tools.length && tools.every((name) => name.startsWith('modern__')), `${tools}`);
});

check('X-Toolway-Progress: the chunks about a running tool do no harm', async () => {
  for (const form of ['on', 'open-webui']) {
    const sign = `node-told-${process.pid}-${form}`;
    const messages = [user(plan(round('Wait. ', [call('modern__slow', { sign, seconds: 0.3 })]), FINAL).text)];
    const asking = client({ defaultHeaders: { 'X-Toolway-Progress': form } });
    const said = await asking.chat.completions.stream({ model, messages }).finalContent();
    equal(results(said), [['modern__slow', `${sign} is finished`]], 'results');
  }
});

check('models.list and models.retrieve', async () => {
  const names = [];
  for await (const { id } of client().models.list()) names.push(id);
  assert.ok(names.includes('scripted-1') && names.includes('scripted-2'), `${names}`);
  equal((await client().models.retrieve('scripted-2')).id, 'scripted-2', 'id');
});

await runAll();
