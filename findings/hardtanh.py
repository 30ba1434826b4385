"""nn.Hardtanh(0, 1): its upper end, a default of aten, is dropped by torch.export, and read as 'no end'."""
import torch, vertex_softmax as vx
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.sign = nn.Parameter(torch.tensor([1.0, -1, 1, -1, 1, -1]))
        self.h = nn.Hardtanh(0, 1)

    def forward(self, x):
        z = 10 * torch.relu((x * self.sign).sum(-1, keepdim=True) - 5)  # only near one corner above 0: 10 there
        return torch.cat([self.h(z) - 0.5 * z + 0.5, torch.zeros_like(z)], -1)

net = Net().double().eval()
x = torch.zeros(1, 6, dtype=torch.float64)
ball = vx.LinfBall(x, 1.0)
worst = net.sign.detach()[None]
assert bool(ball.contains(worst))
print("margin at a point of the set:", (net(worst)[0, 0] - net(worst)[0, 1]).item())
for method in ("ibp", "crown", "alpha-crown", "vertex", "hybrid", "joint", "bab"):
    found = vx.certify(net, ball, 0, method)
    print(method, found.verdicts[0], float(found.worst[0]))
found = vx.certify(net, ball, 0, "joint", certificate=True)
print("certificate:", found.verdicts[0], found.certificates[0] is not None and found.certificates[0].check().accepted)
