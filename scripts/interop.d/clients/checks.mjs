// What the Node client shares: plans for the scripted model, and named checks that each end in one JSON line.

import assert from 'node:assert/strict';

const checks = [];
let number = 0;

/** Registers an async function as a check. It holds when the promise does. */
export function check(name, run) {
  checks.push({ name, run });
}

export function equal(got, wanted, what) {
  assert.deepStrictEqual(got, wanted, `${what}: got ${JSON.stringify(got)}, should be ${JSON.stringify(wanted)}`);
}

export const call = (name, args) => [name, args];
export const round = (text, calls = [], more = {}) => ({ text: [].concat(text), calls, ...more });
export const FINAL = round(['Results: ', '{results}']);

/** A user message that makes the model go through the rounds, and the tag its requests are noted under. */
export function plan(...rounds) {
  const tag = `${process.pid}-${number++}`;
  return { tag, text: `Please help. PLAN ${JSON.stringify({ tag, rounds })}` };
}

/** What the model was told by tools: `[name, content]` in order, as an answer quotes it. */
export function results(text) {
  const at = text.lastIndexOf('Results: ');
  assert.ok(at >= 0, `the answer quotes no results: ${text.slice(0, 400)}`);
  return JSON.parse(text.slice(at + 'Results: '.length)).map((r) => [r.name, r.content]);
}

/** The requests that the model got for a plan, in order. */
export async function seen(tag) {
  const response = await fetch(`${process.env.INTEROP_MODEL}/seen?tag=${tag}`);
  return (await response.json()).filter((note) => note.tag === tag);
}

/** Waits for a true answer, and returns it. */
export async function until(question, what, seconds = 10) {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    const answer = await question();
    if (answer) return answer;
    assert.ok(Date.now() < deadline, `not within ${seconds} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Prints how many checks there are, then runs them in order and prints what held. One that fails costs no other. */
export async function runAll() {
  const wanted = process.argv[2] ?? '';
  const chosen = checks.filter((c) => c.name.includes(wanted));
  console.log(JSON.stringify({ checks: chosen.length }));
  for (const { name, run } of chosen) {
    const started = Date.now();
    let why = '';
    try {
      await run();
    } catch (error) {
      why = `${error?.name}: ${error?.message}`;
      console.error(error);
    }
    console.log(JSON.stringify({ check: name, why, seconds: (Date.now() - started) / 1000 }));
  }
}
