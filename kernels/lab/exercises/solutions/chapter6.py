"""Reference solutions of chapter 6."""

import torch


def index_bytes(batch, context):
    return batch * (context // 4) * 132


def cap_ladder(max_entries):
    ladder, cap = [], 2048
    while cap < max_entries:
        ladder.append(cap)
        cap *= 2
    return [*ladder, max_entries]


def stride(out, scores):
    cap = scores.shape[1]
    out[:, :cap] = scores
    out[:, cap:] = -torch.inf


def topk(logits, lengths, k):
    batch, width = logits.shape
    position = torch.arange(width, device=logits.device)
    live = position[None, :] < lengths[:, None]
    # A stable sort keeps the smaller position first among equals
    order = torch.sort(torch.where(live, logits, -torch.inf), dim=1, descending=True, stable=True).indices[
        :, :k
    ]
    return torch.where(live.gather(1, order), order, -1)
