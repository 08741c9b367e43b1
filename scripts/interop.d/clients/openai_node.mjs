// openai-node against the gateway: plain, streamed, through the `.stream()` helper and through `runTools`.

import assert from 'node:assert/strict';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';

import { FINAL, call, check, equal, plan, results, round, runAll, seen, until } from './checks.mjs';

// The package lives in the folder that the installer made, not beside this file.
const { default: OpenAI } = await import(createRequire(`${process.env.INTEROP_NPM}/package.json`).resolve('openai'));

const BASE = `${process.env.INTEROP_GATEWAY}/v1`;
const SIGNS = process.env.INTEROP_SIGNS;
const model = 'scripted-1';
const client = (settings = {}) => new OpenAI({ baseURL: BASE, apiKey: 'sk-interop', timeout: 30_000, ...settings });
const user = (text) => ({ role: 'user', content: text });
const lookup = {
  type: 'function',
  function: {
    name: 'lookup',
    description: "Looks something up on the client's side.",
    parameters: { type: 'object', properties: { key: { type: 'string' } }, required: ['key'] },
  },
};
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

function finished(answer) {
  equal(answer.calls, [], 'calls shown to the client');
  equal(answer.finish, 'stop', 'finish_reason');
}

// ---- The chats every way goes through ---------------------------------------------------------------------------

for (const [name, ask] of [['plain', plainly], ['streamed', streamed], ['.stream()', helped]]) {
  check(`${name}: plain chat`, async () => {
    const { text } = plan(round(['Good ', 'morning ', '☀️.']));
    const answer = await ask([user(text)]);
    finished(answer);
    equal(answer.text, 'Good morning ☀️.', 'text');
  });

  check(`${name}: a loop of two rounds of gateway tools`, async () => {
    const { tag, text } = plan(
      round('First. ', [call('modern__upper', { text: 'one' })]),
      round('Second. ', [call('modern__add', { a: 2, b: 3 })]),
      FINAL,
    );
    const answer = await ask([user(text)]);
    finished(answer);
    equal(results(answer.text), [['modern__upper', 'ONE'], ['modern__add', '2 + 3 = 5']], 'results');
    if (ask !== plainly) assert.ok(answer.text.startsWith('First. Second. Results: '), answer.text);
    equal((await seen(tag)).map((note) => note.ended), ['done', 'done', 'done'], 'requests at the model');
  });

  check(`${name}: parallel gateway calls keep their order`, async () => {
    const sign = `node-${process.pid}-${name}`;
    const calls = [call('modern__slow', { sign, seconds: 0.4 }), call('everything__echo', { message: 'two' })];
    const answer = await ask([user(plan(round('', calls), FINAL).text)]);
    finished(answer);
    equal(results(answer.text), [['modern__slow', `${sign} is finished`], ['everything__echo', 'Echo: two']], 'results');
  });

  check(`${name}: mixed turn, then another question`, async () => {
    const calls = [call('modern__upper', { text: 'a' }), call('lookup', { key: 'b' }), call('modern__add', { a: 1, b: 1 })];
    const messages = [user(plan(round('Both. ', calls), FINAL).text)];
    const first = await ask(messages, true);
    equal(first.calls.map(([, name, args]) => [name, args]), [['lookup', { key: 'b' }]], 'calls shown to the client');
    equal(first.finish, 'tool_calls', 'finish_reason');
    messages.push(first.message, { role: 'tool', tool_call_id: first.calls[0][0], content: 'value of b' });
    const second = await ask(messages, true);
    finished(second);
    const wanted = [['modern__upper', 'A'], ['lookup', 'value of b'], ['modern__add', '1 + 1 = 2']];
    equal(results(second.text), wanted, 'results of the gateway and of the client, in the order of the calls');
    const { tag, text } = plan(round('And ', [call('modern__upper', { text: 'c' })]), FINAL);
    const third = await ask([...messages, second.message, user(text)], true);
    equal(results(third.text), [['modern__upper', 'C']], 'results of the second question');
    const told = (await seen(tag))[0].messages.filter((m) => m.role === 'tool').map((m) => m.content);
    equal(told, ['A', 'value of b', '1 + 1 = 2'], 'tool messages of the first question, as the model sees them later');
  });

  check(`${name}: the model can read what went wrong with a tool`, async () => {
    const calls = [
      call('modern__fail', { why: 'the shelf is empty' }),
      call('modern__add', { a: 'two', b: 3 }),
      ['modern__add', '{"a": 1,'],
      call('modern__uper', { text: 'x' }),
    ];
    const answer = await ask([user(plan(round('', calls), FINAL).text)]);
    finished(answer);
    const errors = results(answer.text).map(([, content]) => JSON.parse(content).error);
    const wanted = ['tool_error', 'invalid_params', 'invalid_arguments_json', 'unknown_tool'];
    equal(errors.map((error) => error.type), wanted, 'types of the errors');
    assert.match(errors[0].message, /the shelf is empty/);
  });

  check(`${name}: usage is the sum over the rounds`, async () => {
    const { text } = plan(round('Let me see. ', [call('modern__upper', { text: 'a' })]), FINAL);
    equal((await ask([user(text)])).tokens, 30, 'total tokens of two rounds of 15');
  });
}

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
