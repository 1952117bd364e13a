#!/usr/bin/python3
"""A two-tower model from training to ranked candidates.

    config/examples/two_tower.py train /tmp/two_tower               # needs python3-torch
    build/release/bagserve serve --models /tmp/two_tower/models
    config/examples/two_tower.py rank /tmp/two_tower [URL]          # needs the server alone

A user is the mean of the items that they liked, an item the sum of its tags; a linear layer takes both to
vectors whose product is the score. `train` makes up users who like one topic each, trains on what they
liked, and exports both towers: the server pools and projects. `rank` asks for the user's vector and those
of all candidates, and prints the best.
"""

import json
import pathlib
import sys

import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "proto" / "clients" / "python"))

TOPICS, ITEMS, TAGS, DIM, VECTOR = 8, 400, 64, 16, 8


def make_items(rng):
    """The topic and the three tags of each item; a topic has eight tags of its own."""
    topics = rng.integers(0, TOPICS, ITEMS)
    return topics, topics[:, None] * (TAGS // TOPICS) + rng.integers(0, TAGS // TOPICS, (ITEMS, 3))


def train(directory):
    import torch
    from bagserve_export import Export

    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    topics, tags = make_items(rng)
    history = torch.nn.EmbeddingBag(ITEMS, DIM, mode="mean")
    user_layer = torch.nn.Linear(DIM, VECTOR)
    words = torch.nn.EmbeddingBag(TAGS, DIM, mode="sum")
    item_layer = torch.nn.Linear(DIM, VECTOR)
    model = torch.nn.ModuleList([history, user_layer, words, item_layer])
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    liked = [np.flatnonzero(topics == topic) for topic in range(TOPICS)]
    for step in range(300):
        of = rng.integers(0, TOPICS, 64)
        seen = torch.tensor(np.array([rng.choice(liked[topic], 5) for topic in of]))
        item = rng.integers(0, ITEMS, 64)
        item[::2] = [rng.choice(liked[topic]) for topic in of[::2]]
        scores = (user_layer(history(seen)) * item_layer(words(torch.tensor(tags[item])))).sum(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            scores, torch.tensor((topics[item] == of).astype(np.float32)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    exported = Export()
    exported.table("user", history.weight, "mean", projection=user_layer)
    exported.table("item", words.weight, "sum", projection=item_layer)
    exported.write(pathlib.Path(directory) / "models")
    user = [int(i) for i in liked[3][:5]]
    with torch.no_grad():
        vector = user_layer(history(torch.tensor([user])))
        scores = item_layer(words(torch.tensor(tags))) @ vector[0]
    (pathlib.Path(directory) / "catalogue.json").write_text(json.dumps(
        {"user": user, "topics": topics.tolist(), "tags": tags.tolist(),
         "scores": scores.tolist()}))
    print(f"loss {loss.item():.3f}; serve it: build/release/bagserve serve --models {directory}/models")


def rank(directory, url="127.0.0.1:8000"):
    from bagserve_client import Client

    catalogue = json.loads((pathlib.Path(directory) / "catalogue.json").read_text())
    with Client(url) as client:
        user = client.bags("user", [catalogue["user"]])[0]
        scores = client.packed("item", np.array(catalogue["tags"])) @ user
    print(f"the user liked items {catalogue['user']} of topic 3; the best of {len(scores)}:")
    for item in np.argsort(-scores)[:5]:
        print(f"item {item} of topic {catalogue['topics'][item]}, score {scores[item]:.2f}")
    return scores


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in ("train", "rank"):
        sys.exit(__doc__)
    {"train": train, "rank": rank}[sys.argv[1]](*sys.argv[2:])
