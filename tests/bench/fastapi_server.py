"""The same answers from FastAPI, uvicorn and PyTorch: what a team would write in an afternoon.

    fastapi_server.py NAME=TABLE.npy...

One process, one thread, as bagserve has one loop. The handler is written for speed within the
framework: it takes the raw body, runs on the event loop and never waits, and tensors are views on
the body. It answers what the benchmarks ask: indices and offsets, binary or JSON. Prints its port;
ends on SIGTERM.
"""

import json
import socket
import sys

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, Request, Response

app = FastAPI()
tables = {}


def tensors_of(header, binary):
    """The inputs by name."""
    found = {}
    for tensor in header["inputs"]:
        if "data" in tensor:
            found[tensor["name"]] = torch.tensor(tensor["data"], dtype=torch.int64)
        else:
            count = tensor["parameters"]["binary_data_size"]
            found[tensor["name"]] = torch.frombuffer(binary[:count], dtype=torch.int64)
            binary = binary[count:]
    return found


def reply_to(name, header, rows):
    output = {"name": "embeddings", "datatype": "FP32", "shape": list(rows.shape)}
    reply = {"model_name": name, "model_version": "1", "outputs": [output]}
    if not header.get("parameters", {}).get("binary_data_output"):
        output["data"] = rows.flatten().tolist()
        return Response(json.dumps(reply), media_type="application/json")
    raw = rows.numpy().tobytes()
    output["parameters"] = {"binary_data_size": len(raw)}
    header = json.dumps(reply, separators=(",", ":")).encode()
    return Response(header + raw, media_type="application/octet-stream",
                    headers={"Inference-Header-Content-Length": str(len(header))})


@app.get("/v2/models")
async def list_models():
    return {"models": list(tables)}


@app.get("/v2/models/{name}")
async def describe(name: str):
    rows, columns = tables[name].shape
    integers = {"datatype": "INT64", "shape": [-1]}
    return {"name": name, "versions": ["1"],
            "inputs": [{"name": "indices", **integers}, {"name": "offsets", **integers}],
            "outputs": [{"name": "embeddings", "datatype": "FP32", "shape": [-1, columns]}],
            "parameters": {"rows": rows, "bytes": rows * columns * 4}}


@app.post("/v2/models/{name}/infer")
async def infer(name: str, request: Request):
    # bytearray: torch takes views of writable memory only, without a complaint.
    body = bytearray(await request.body())
    length = int(request.headers.get("inference-header-content-length", len(body)))
    header = json.loads(body[:length])
    inputs = tensors_of(header, memoryview(body)[length:])
    with torch.inference_mode():
        rows = torch.nn.functional.embedding_bag(inputs["indices"], tables[name],
                                                 inputs["offsets"], mode="sum")
    return reply_to(name, header, rows)


def main():
    torch.set_num_threads(1)
    for argument in sys.argv[1:]:
        name, path = argument.split("=", 1)
        tables[name] = torch.from_numpy(np.load(path))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
