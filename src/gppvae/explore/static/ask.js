// Questions to the server. Answers with arrays are a JSON header and float32 numbers (wire.py).

export async function meta() {
  return (await fetch("ask/meta")).json();
}

export async function ask(name, question) {
  const answer = await fetch(`ask/${name}`, {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify(question),
  });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error || `the server said ${answer.status}`);
  if (answer.headers.get("content-type").startsWith("application/json")) return answer.json();
  return unpack(await answer.arrayBuffer());
}

export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const found = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let start = 4 + length;
  for (const [name, shape] of found.arrays) {
    const size = shape.reduce((a, b) => a * b, 1);
    found[name] = new Float32Array(buffer, start, size);
    found[name].shape = shape;
    start += 4 * size;
  }
  return found;
}

// Runs one task at a time; of those that wait only the newest is kept, so a slider never falls behind.
export class Newest {
  constructor(run, failed) {
    this.run = run;
    this.failed = failed;
    this.busy = false;
    this.waiting = null;
  }

  async ask(...args) {
    this.waiting = args;
    if (this.busy) return;
    this.busy = true;
    while (this.waiting) {
      const next = this.waiting;
      this.waiting = null;
      try {
        await this.run(...next);
      } catch (error) {
        this.failed(error);
      }
    }
    this.busy = false;
  }
}
