// OpenAI's Agents SDK for Node against the gateway, over the Responses API, its default, and over chat completions.

import {
  Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, hostedMcpTool, setTracingDisabled, tool,
} from '@openai/agents';
import { OpenAI } from 'openai';
import { z } from 'zod';

import { FINAL, call, check, equal, plan, results, round, runAll, seen } from './checks.mjs';

setTracingDisabled(true);
const client = new OpenAI({ baseURL: `${process.env.INTEROP_GATEWAY}/v1`, apiKey: 'sk-interop', timeout: 30_000 });
const MODELS = {
  responses: new OpenAIResponsesModel(client, 'scripted-1'),
  chat: new OpenAIChatCompletionsModel(client, 'scripted-1'),
};

/** What an agent with these tools comes to. */
async function run(model, text, stream, tools) {
  const agent = new Agent({ name: 'tester', model, tools });
  const result = await new Runner().run(agent, text, { stream });
  if (stream) {
    for await (const _ of result);
    await result.completed;
  }
  return result;
}

for (const [name, model] of Object.entries(MODELS)) {
  for (const stream of [false, true]) {
    check(`${name}${stream ? ', streamed' : ''}: runs its own tool only, in a mixed turn`, async () => {
      const ran = [];
      const execute = async ({ key }) => (ran.push(key), `value of ${key}`);
      const parameters = z.object({ key: z.string() });
      const lookup = tool({ name: 'lookup', description: "Looks something up on the client's side.", parameters, execute });
      const calls = [call('lookup', { key: 'b' }), call('modern__upper', { text: 'a' })];
      const { tag, text } = plan(round('So. ', calls), round('', [call('modern__add', { a: 4, b: 5 })]), FINAL);
      const { finalOutput } = await run(model, text, stream, [lookup]);
      const wanted = [['lookup', 'value of b'], ['modern__upper', 'A'], ['modern__add', '4 + 5 = 9']];
      equal(results(finalOutput), wanted, 'results');
      equal(ran, ['b'], 'runs of the own tool');
      equal((await seen(tag)).length, 3, 'requests at the model');
    });
  }
}

for (const stream of [false, true]) {
  check(`hostedMcpTool${stream ? ', streamed' : ''}: the gateway's tools, as the provider's own`, async () => {
    const { text } = plan(round('', [call('modern__upper', { text: 'a' })]), FINAL);
    const hosted = hostedMcpTool({ serverLabel: 'modern', serverUrl: 'https://unused.example', requireApproval: 'never' });
    const { finalOutput } = await run(MODELS.responses, text, stream, [hosted]);
    equal(results(finalOutput), [['modern__upper', 'A']], 'results');
  });
}

for (const approve of [true, false]) {
  check(`hostedMcpTool with approval: the call ${approve ? 'runs' : 'does not run'}`, async () => {
    const { text } = plan(round('', [call('modern__upper', { text: 'a' })]), FINAL);
    const hosted = hostedMcpTool({
      serverLabel: 'modern',
      serverUrl: 'https://unused.example',
      requireApproval: 'always',
      onApproval: async () => ({ approve, reason: 'because' }),
    });
    const { finalOutput } = await run(MODELS.responses, text, false, [hosted]);
    const [[, told]] = results(finalOutput);
    equal(approve ? told === 'A' : told.includes('because'), true, `what the model was told: ${told}`);
  });
}

await runAll();
