// The chats that every Node client goes through, whatever its way of asking; scenarios.py is the same for Python.
//
// A peer is one way of asking: `ask(messages, own)` gives { text, finish, message, calls, tokens }, where `own` offers
// the client's tool `lookup(key)`, `calls` are [id, name, arguments] and `message` is what is sent back.

import assert from 'node:assert/strict';

import { FINAL, call, check, equal, plan, results, round, seen } from './checks.mjs';

export const user = (text) => ({ role: 'user', content: text });

export const LOOKUP = {
  name: 'lookup',
  description: "Looks something up on the client's side.",
  parameters: { type: 'object', properties: { key: { type: 'string' } }, required: ['key'] },
};

/** What must be true of the end of a chat: no call is shown, and it stops. */
function finished(answer) {
  equal(answer.calls, [], 'calls shown to the client');
  equal(answer.finish, 'stop', 'finish_reason');
}

/** Adds the common checks for one way of asking. `tool` makes the message with a result of the client's own. */
export function register({ name, streamed, ask, tool }) {
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
    if (streamed) assert.ok(answer.text.startsWith('First. Second. Results: '), answer.text);
    equal((await seen(tag)).map((note) => note.ended), ['done', 'done', 'done'], 'requests at the model');
  });

  check(`${name}: parallel gateway calls keep their order`, async () => {
    const sign = `node-${process.pid}-${name.replace(/\W/g, '-')}`;
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
    messages.push(first.message, tool(first.calls[0][0], 'value of b'));
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
