// A JavaScript client that only needs fetch, for browsers and Node.js 18 or newer.
//
//     import { infer, inferBinary, generate } from "./infer.mjs";
//     const answer = await infer("http://localhost:8000", "upper", { text: … });
//
// For browsers, start the server with --cors.

const LENGTH = "Inference-Header-Content-Length";

/** Tensors as JSON: easy to read, good for small tensors. */
export async function infer(server, model, inputs, outputs) {
  const answer = await post(`${server}/v2/models/${encodeURIComponent(model)}/infer`, {
    body: JSON.stringify({ inputs, outputs }),
  });
  return answer.json();
}

/** The binary extension: the bytes of typed arrays after the JSON. Returns FP32 outputs by name. */
export async function inferBinary(server, model, inputs) {
  const described = inputs.map(({ name, datatype, shape, data }) => ({
    name,
    datatype,
    shape,
    parameters: { binary_data_size: data.byteLength },
  }));
  const header = new TextEncoder().encode(
    JSON.stringify({ inputs: described, parameters: { binary_data_output: true } }),
  );
  const answer = await post(`${server}/v2/models/${encodeURIComponent(model)}/infer`, {
    body: new Blob([header, ...inputs.map((input) => input.data)]),
    headers: { [LENGTH]: String(header.byteLength), "Content-Type": "application/octet-stream" },
  });
  const body = await answer.arrayBuffer();
  const length = Number(answer.headers.get(LENGTH));
  const document = JSON.parse(new TextDecoder().decode(body.slice(0, length)));
  const found = {};
  let offset = length;
  for (const output of document.outputs) {
    const size = output.parameters.binary_data_size;
    found[output.name] = new Float32Array(body.slice(offset, offset + size));
    offset += size;
  }
  return found;
}

/** Plain JSON in and out, by the names of inputs and outputs. */
export async function generate(server, model, inputs) {
  const answer = await post(`${server}/v2/models/${encodeURIComponent(model)}/generate`, {
    body: JSON.stringify(inputs),
  });
  return answer.json();
}

/** The same for decoupled models: each response as soon as it arrives. */
export async function* generateStream(server, model, inputs) {
  const url = `${server}/v2/models/${encodeURIComponent(model)}/generate_stream`;
  const answer = await post(url, { body: JSON.stringify(inputs) });
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    waiting += decoder.decode(value, { stream: true });
    const events = waiting.split("\n\n");
    waiting = events.pop();
    for (const event of events) yield JSON.parse(event.replace(/^data: /, ""));
  }
}

async function post(url, options) {
  const answer = await fetch(url, { method: "POST", ...options });
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer;
}

/** Try all functions with the demo models: `node infer.mjs http://localhost:8000`. */
export async function show(server, print) {
  const text = [{ name: "text", datatype: "BYTES", shape: [1, 1], data: ["a shoal of fish"] }];
  const answer = await infer(server, "upper", text);
  print(`infer: ${answer.outputs[0].data[0]}`);

  const image = new Float32Array(64).fill(8);
  const { probabilities } = await inferBinary(server, "digits", [
    { name: "image", datatype: "FP32", shape: [1, 64], data: image },
  ]);
  const sum = probabilities.reduce((total, each) => total + each, 0);
  print(`binary: ${probabilities.length} probabilities, together ${sum.toFixed(3)}`);

  print(`generate: ${(await generate(server, "upper", { text: "one eel" })).upper}`);
  for await (const event of generateStream(server, "upper", { text: "two eels" })) {
    print(`event: ${event.upper}`);
  }
  try {
    await infer(server, "nope", text);
  } catch (error) {
    print(`refused: ${error.message}`);
  }
}

if (typeof process !== "undefined" && import.meta.url === `file://${process.argv[1]}`) {
  await show(process.argv[2] ?? "http://localhost:8000", console.log);
}
