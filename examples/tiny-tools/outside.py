"""Plays the sessions of a run from outside: takes them, lets the agent play, gives the rewards. Nothing here is of
roll. `python outside.py OUTPUT_DIR [PROGRAMS_AT_ONCE]`, beside a run of tiny_tools_outside.yaml."""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import agent_openai
import httpx
import openai


async def serve(url: str, token: str) -> None:
    """One program after the other, until the run is over."""
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as run:
        while True:
            try:
                asked = {"wait_s": 30}
                reply = await run.post("/sessions", json=asked, headers={"Authorization": f"Bearer {token}"})
            except httpx.TransportError:
                return  # the run has closed its port
            if reply.status_code == 410:  # it is over
                return
            if reply.status_code == 204:  # none waits: the run trains
                continue
            session = reply.raise_for_status().json()
            headers = {"Authorization": f"Bearer {session['api_key']}"}
            try:
                earned = await agent_openai.play(session["task"], SimpleNamespace(**session))
            except (openai.APIConnectionError, openai.APIStatusError) as error:
                print(f"session {session['session'][:8]}: {error}", flush=True)
                continue
            await run.post(f"/sessions/{session['session']}/reward", json=earned, headers=headers)


async def main(folder: str, num_programs: int) -> None:
    file = Path(folder) / "agent_endpoint.json"
    while not file.exists():
        await asyncio.sleep(1)
    told = json.loads(file.read_text())
    await asyncio.gather(*(serve(told["url"], told["token"]) for _ in range(num_programs)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int((sys.argv[2:] or ["16"])[0])))
