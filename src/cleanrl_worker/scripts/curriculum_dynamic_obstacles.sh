#!/usr/bin/env bash
# @description: Dynamic-Obstacles in growing rooms: 5x5, 6x6, 8x8, 16x16; each phase goes on from the one before
# @env_family: minigrid
# @phases: 4
# @total_timesteps: 800000
# @author: MOSAIC
# @algo: ppo
# @env_id: MiniGrid-Dynamic-Obstacles-5x5-v0
set -euo pipefail

total=$(python -c 'import json, sys; print(int(json.load(open(sys.argv[1]))["total_timesteps"]))' "$MOSAIC_CONFIG_FILE")
mode=train
for size in 5x5 6x6 8x8 16x16; do
  echo "Dynamic-Obstacles $size: $((total / 4)) steps ($mode)"
  python -m cleanrl_worker.cli --config "$MOSAIC_CONFIG_FILE" --env-id "MiniGrid-Dynamic-Obstacles-$size-v0" \
    --total-timesteps "$((total / 4))" --extras "{\"mode\": \"$mode\"}"
  mode=resume_training
done
