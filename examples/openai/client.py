"""OpenAI's client with this server.

    pip install openai
    shoal serve examples/openai/models
    python examples/openai/client.py [localhost:8000]

The model is a Python model that tells a story word by word. Any model with a text for an input and
a text for an output can be asked like this.
"""

from __future__ import annotations

import asyncio
import sys

import openai


def main(server: str) -> None:
    with openai.OpenAI(base_url=f"http://{server}/v1", api_key="not needed") as client:
        models = [model.id for model in client.models.list()]
        print("models:", ", ".join(models))

        answer = client.completions.create(
            model="storyteller", prompt="the small fish", max_tokens=12, seed=5
        )
        print("completion:", answer.choices[0].text)
        print("tokens:", answer.usage.total_tokens, "finished by:", answer.choices[0].finish_reason)

        question = {"role": "user", "content": "Tell me about a shoal"}
        stream = client.chat.completions.create(
            model="storyteller", messages=[question], seed=3, stream=True
        )
        print("conversation: ", end="")
        for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()

        try:
            client.completions.create(model="nobody", prompt="hello")
        except openai.NotFoundError as error:
            print("refused:", error.message)


async def several_at_once(server: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"http://{server}/v1", api_key="not needed") as client:
        stories = await asyncio.gather(
            *(
                client.completions.create(model="storyteller", prompt="the boat", seed=seed)
                for seed in range(3)
            )
        )
    for number, story in enumerate(stories):
        print(f"story {number}: {story.choices[0].text}")


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "localhost:8000"
    main(address)
    asyncio.run(several_at_once(address))
