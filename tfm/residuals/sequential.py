"""One branch after another."""

import dataclasses

from tfm.residuals.protocol import Residual


@dataclasses.dataclass(frozen=True)
class Sequential(Residual):
  """Each branch f reads the sum of all before it, with norms where the placement puts them:

  pre:       x + f(norm(x))            (Xiong et al. 2020)
  post:      norm(x + f(x))            (Vaswani et al. 2017, §3.1)
  sandwich:  x + norm(f(norm(x)))      (Ding et al. 2021, CogView; Gemma Team 2024, Gemma 2, §2; Kim et al.
                                       2025, Peri-LN)
  res_post:  x + norm(f(x))            (Liu et al. 2022, Swin Transformer V2; OLMo Team 2024, OLMo 2)
  """

  def __call__(self, block, branches, x, context):
    for name, f in branches.items():
      x = x + block.branch(name, f, x, context)
      if block.placement == 'post':
        x = block.norm(name=f'{name}_norm')(x)
    return x
