// Both generations of the npm SDK as clients of toolway: v1, and v2 in both eras, over stdio and over HTTP.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

import { check, equal, runAll, until } from './checks.mjs';

// The packages live in the folder that the installer made, not beside this file.
const { resolve } = createRequire(`${process.env.INTEROP_MCP_NPM}/package.json`);
const load = (name) => import(pathToFileURL(resolve(name)).href);
const v1 = {
  ...(await load('@modelcontextprotocol/sdk/client/index.js')),
  ...(await load('@modelcontextprotocol/sdk/client/stdio.js')),
  ...(await load('@modelcontextprotocol/sdk/client/streamableHttp.js')),
  ...(await load('@modelcontextprotocol/sdk/types.js')),
};
const v2 = { ...(await load('@modelcontextprotocol/client')), ...(await load('@modelcontextprotocol/client/stdio')) };

const [command, ...args] = JSON.parse(process.env.INTEROP_MCP_STDIO);
const HTTP = new URL(process.env.INTEROP_MCP_HTTP);
const transports = {
  stdio: (sdk) => new sdk.StdioClientTransport({ command, args, stderr: 'ignore', env: process.env }),
  HTTP: (sdk) => new sdk.StreamableHTTPClientTransport(HTTP),
};
const me = { name: 'interop', version: '1' };
const capabilities = { elicitation: { form: {} } };
const generations = {
  'sdk v1, 2025-11-25': { sdk: v1, version: undefined, question: v1.ElicitRequestSchema },
  'client v2, 2025-11-25': { sdk: v2, version: '2025-11-25', mode: 'legacy', question: 'elicitation/create' },
  'client v2, 2026-07-28': { sdk: v2, version: '2026-07-28', mode: 'auto', question: 'elicitation/create' },
};

/** Runs something with a client, once the servers behind toolway are there. */
async function connected({ sdk, version, mode, question }, transport, run) {
  const client = new sdk.Client(me, { capabilities, versionNegotiation: mode && { mode } });
  client.setRequestHandler(question, async ({ params }) => {
    equal(params.message, 'What is your name?', 'question');
    return { action: 'accept', content: { name: 'Ada' } };
  });
  await client.connect(transports[transport](sdk));
  try {
    if (version) equal(client.getNegotiatedProtocolVersion(), version, 'version');
    const there = async () => {
      const names = (await client.listTools()).tools.map((tool) => tool.name);
      return names.includes('modern__upper') && names.includes('desk__shout');
    };
    await until(there, 'the tools are listed', 30);
    await run(client);
  } finally {
    await client.close();
  }
}

const call = (client, name, args, options) => client.callTool({ name, arguments: args }, ...options);
const text = (result) => result.content[0].text;

const scenarios = {
  'tools of servers and functions': async (client) => {
    const run = (name, args) => call(client, name, args, []);
    equal(text(await run('modern__upper', { text: 'abc' })), 'ABC', "result of a server's tool");
    assert.ok(text(await run('desk__shout', { text: 'abc' })).includes('ABC!'), 'result of a function');
    const weather = await run('modern__weather', { city: 'Oslo' });
    equal(weather.structuredContent, { city: 'Oslo', celsius: 21 }, 'structured content');
    equal((await run('modern__picture', {})).content[0].type, 'image', 'picture');
    const failure = await run('modern__fail', { why: 'out of order' });
    assert.ok(failure.isError && text(failure).includes('out of order'), 'a failure');
    await assert.rejects(run('modern__nothing', {}), (error) => error.code === -32602);
  },
  progress: async (client) => {
    const heard = [];
    const options = { onprogress: (progress) => heard.push(progress) };
    const result = await call(client, 'modern__slow', { sign: `node-${process.pid}`, seconds: 0.5 }, optionsOf(client, options));
    assert.ok(text(result).includes('is finished'), 'result');
    assert.ok(heard.length >= 3 && heard[0].total === 5, `progress: ${JSON.stringify(heard)}`);
  },
  'prompts and resources': async (client) => {
    const { prompts } = await client.listPrompts();
    assert.ok(prompts.some((prompt) => prompt.name === 'modern__review'), 'prompts');
    const prompt = await client.getPrompt({ name: 'modern__review', arguments: { code: 'f(x)' } });
    equal(prompt.messages[0].content.text, 'Please review f(x).', 'prompt');
    const { resources } = await client.listResources();
    const motto = resources.find((resource) => resource.name.includes('motto'));
    equal((await client.readResource({ uri: motto.uri })).contents[0].text, 'One gateway.', 'resource');
    const { resourceTemplates } = await client.listResourceTemplates();
    const notes = resourceTemplates.find((template) => template.uriTemplate.includes('notes'));
    const uri = notes.uriTemplate.replace('{name}', 'tea');
    equal((await client.readResource({ uri })).contents[0].text, 'A note on tea.', 'resource of a template');
  },
  "a tool's question is answered": async (client) => {
    equal(text(await call(client, 'modern__greet', {}, [])), 'Hello, Ada!', 'result');
  },
};

/** The options of a call: v1 has the schema of the result before them. */
function optionsOf(client, options) {
  return client instanceof v1.Client ? [undefined, options] : [options];
}

for (const [generation, how] of Object.entries(generations)) {
  for (const transport of Object.keys(transports)) {
    for (const [name, run] of Object.entries(scenarios)) {
      check(`${generation} over ${transport}: ${name}`, () => connected(how, transport, run));
    }
  }
}

await runAll();
