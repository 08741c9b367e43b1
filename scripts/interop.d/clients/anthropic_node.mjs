// Anthropic's Node SDK against the gateway: messages.create, messages.stream and its tool runner.

import assert from 'node:assert/strict';

import Anthropic from '@anthropic-ai/sdk';
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema';

import { FINAL, call, check, equal, plan, results, round, runAll, seen } from './checks.mjs';
import { LOOKUP, register, user } from './scenarios.mjs';

const baseURL = process.env.INTEROP_GATEWAY;
const model = 'scripted-1';
const client = (settings = {}) => new Anthropic({ baseURL, apiKey: 'sk-interop', timeout: 30_000, ...settings });
const { parameters: input_schema, ...named } = LOOKUP;
const FINISHES = { end_turn: 'stop', tool_use: 'tool_calls' };

function request(messages, own) {
  return { model, max_tokens: 1000, messages, ...(own ? { tools: [{ ...named, input_schema }] } : {}) };
}

function answerOf({ content, stop_reason, usage }) {
  const calls = content.filter((b) => b.type === 'tool_use').map((b) => [b.id, b.name, b.input]);
  const text = content.filter((b) => b.type === 'text').map((b) => b.text).join('');
  const tokens = usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + usage.output_tokens;
  return { text, finish: FINISHES[stop_reason] ?? stop_reason, message: { role: 'assistant', content }, calls, tokens };
}

async function created(messages, own) {
  return answerOf(await client().messages.create(request(messages, own)));
}

async function helped(messages, own) {
  const stream = client().messages.stream(request(messages, own));
  let text = '';
  stream.on('text', (delta) => (text += delta));
  const answer = answerOf(await stream.finalMessage());
  equal(answer.text, text, 'text of the deltas and of the message');
  return answer;
}

const tool = (id, content) => ({ role: 'user', content: [{ type: 'tool_result', tool_use_id: id, content }] });
register({ name: 'messages.create', streamed: false, ask: created, tool });
register({ name: 'messages.stream()', streamed: true, ask: helped, tool });

for (const stream of [false, true]) {
  check(`toolRunner${stream ? ', streamed' : ''}: runs its own tool only, in a mixed turn`, async () => {
    const ran = [];
    const run = ({ key }) => (ran.push(key), `value of ${key}`);
    const calls = [call('lookup', { key: 'b' }), call('modern__upper', { text: 'a' })];
    const { tag, text } = plan(round('', calls), round('', [call('modern__add', { a: 4, b: 5 })]), FINAL);
    const tools = [betaTool({ name: 'lookup', description: named.description, inputSchema: input_schema, run })];
    const runner = client().beta.messages.toolRunner({ ...request([user(text)]), tools, stream });
    const { content } = await runner.runUntilDone();
    const wanted = [['lookup', 'value of b'], ['modern__upper', 'A'], ['modern__add', '4 + 5 = 9']];
    equal(results(content.at(-1).text), wanted, 'results');
    equal(ran, ['b'], 'runs of the own tool');
    equal((await seen(tag)).length, 3, 'requests at the model');
  });
}

check('errors of the model arrive as the right exceptions', async () => {
  const classes = { 400: 'BadRequestError', 429: 'RateLimitError', 500: 'InternalServerError' };
  for (const [status, name] of Object.entries(classes)) {
    const body = { error: { message: 'it is so', type: 'x', param: null, code: 'y' } };
    const { text } = plan(round('', [], { status: Number(status), body }));
    for (const stream of [false, true]) {
      const asking = client({ maxRetries: 0 }).messages.create({ ...request([user(text)]), stream });
      const error = await asking.then(() => assert.fail('no exception'), (error) => error);
      assert.ok(error instanceof Anthropic[name], `${status}: ${error}`);
      assert.match(error.message, /it is so/);
    }
  }
});

check('messages.countTokens', async () => {
  const counted = await client().messages.countTokens({ model, messages: [user('hello')] });
  assert.ok(counted.input_tokens > 0, JSON.stringify(counted));
});

await runAll();
