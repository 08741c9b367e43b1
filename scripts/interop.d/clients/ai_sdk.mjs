// The AI SDK against the gateway: its OpenAI provider as it is (the Responses API) and with `.chat()`, and its Anthropic
// provider; each with generateText and streamText.

import assert from 'node:assert/strict';

import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { Output, generateText, isStepCount, jsonSchema, streamText, tool } from 'ai';

import { FINAL, call, check, equal, plan, results, round, runAll, seen } from './checks.mjs';
import { LOOKUP, register, user } from './scenarios.mjs';

const BASE = `${process.env.INTEROP_GATEWAY}/v1`;
const settings = { baseURL: BASE, apiKey: 'sk-interop' };
const openai = createOpenAI(settings);
const anthropic = createAnthropic(settings);
const PROVIDERS = {
  openai: openai('scripted-1'),
  'openai.chat': openai.chat('scripted-1'),
  anthropic: anthropic('scripted-1'),
};
const FINISHES = { 'tool-calls': 'tool_calls' };
globalThis.AI_SDK_LOG_WARNINGS = false;

const lookup = (execute) =>
  tool({ description: LOOKUP.description, inputSchema: jsonSchema(LOOKUP.parameters), ...(execute ? { execute } : {}) });

/** What was said, in which way, and the messages that go into the next request. */
async function answerOf(result) {
  const calls = (await result.toolCalls).map((c) => [c.toolCallId, c.toolName, c.input]);
  const reason = await result.finishReason;
  const { messages } = await result.response;
  const tokens = (await result.usage).totalTokens;
  return { text: await result.text, finish: FINISHES[reason] ?? reason, message: messages, calls, tokens };
}

const request = (model, messages, own) => ({
  model,
  messages: messages.flat(),
  maxRetries: 0,
  ...(own ? { tools: { lookup: lookup() } } : {}),
});

async function streamed(model, messages, own) {
  const failures = [];
  const result = streamText({ ...request(model, messages, own), onError: ({ error }) => failures.push(error) });
  await result.consumeStream();
  if (failures.length) throw failures[0];
  return answerOf(result);
}

const toolMessage = (toolCallId, value) => ({
  role: 'tool',
  content: [{ type: 'tool-result', toolCallId, toolName: 'lookup', output: { type: 'text', value } }],
});

for (const [name, model] of Object.entries(PROVIDERS)) {
  const plainly = async (messages, own) => answerOf(await generateText(request(model, messages, own)));
  register({ name: `${name}, generateText`, streamed: false, ask: plainly, tool: toolMessage });
  const ask = (messages, own) => streamed(model, messages, own);
  register({ name: `${name}, streamText`, streamed: true, ask, tool: toolMessage });

  for (const stream of [false, true]) {
    check(`${name}${stream ? ', streamed' : ''}: runs its own tool only, in a mixed turn`, async () => {
      const ran = [];
      const tools = { lookup: lookup(({ key }) => (ran.push(key), `value of ${key}`)) };
      const calls = [call('lookup', { key: 'b' }), call('modern__upper', { text: 'a' })];
      const { tag, text } = plan(round('', calls), round('', [call('modern__add', { a: 4, b: 5 })]), FINAL);
      const asked = { ...request(model, [user(text)]), tools, stopWhen: isStepCount(5) };
      const said = await (stream ? streamText(asked) : await generateText(asked)).text;
      const wanted = [['lookup', 'value of b'], ['modern__upper', 'A'], ['modern__add', '4 + 5 = 9']];
      equal(results(said), wanted, 'results');
      equal(ran, ['b'], 'runs of the own tool');
      equal((await seen(tag)).length, 3, 'requests at the model');
    });
  }

  check(`${name}: errors of the model have their status and message`, async () => {
    for (const status of [400, 429, 500]) {
      const body = { error: { message: 'it is so', type: 'x', param: null, code: 'y' } };
      const { text } = plan(round('', [], { status, body }));
      const asking = generateText(request(model, [user(text)]));
      const error = await asking.then(() => assert.fail('no exception'), (error) => error);
      equal(error.statusCode, status, 'status');
      assert.match(error.message, /it is so/);
    }
  });
}

check('openai: an object as output, after tools of the gateway', async () => {
  const schema = jsonSchema({
    type: 'object', properties: { value: { type: 'string' } }, required: ['value'], additionalProperties: false,
  });
  for (const model of [PROVIDERS.openai, PROVIDERS['openai.chat']]) {
    const { text } = plan(round('', [call('modern__upper', { text: 'a' })]), round('{"value": "A"}'));
    const asked = { ...request(model, [user(text)]), output: Output.object({ schema }) };
    equal((await generateText(asked)).output, { value: 'A' }, 'output');
  }
});

for (const stream of [false, true]) {
  check(`openai.tools.mcp${stream ? ', streamed' : ''}: a call of the gateway is shown, and not run again`, async () => {
    const { text } = plan(round('', [call('modern__upper', { text: 'a' })]), FINAL);
    const mcp = openai.tools.mcp({ serverLabel: 'modern', serverUrl: 'https://unused.example', requireApproval: 'never' });
    const asked = { ...request(PROVIDERS.openai, [user(text)]), tools: { mcp }, stopWhen: isStepCount(5) };
    const result = stream ? streamText(asked) : await generateText(asked);
    equal(results(await result.text), [['modern__upper', 'A']], 'results');
    const calls = (await result.content).filter((part) => part.type === 'tool-call');
    equal(calls.map((c) => [c.toolName, c.providerExecuted]), [['mcp.upper', true]], 'calls');
  });
}

await runAll();
