#!/usr/bin/env bash
# @description: DoorKey in growing rooms: 5x5, 8x8, 16x16; each phase goes on from the one before
# @env_family: minigrid
# @phases: 3
# @total_timesteps: 600000
# @author: MOSAIC
# @algo: ppo
# @env_id: MiniGrid-DoorKey-5x5-v0
set -euo pipefail

total=$(python -c 'import json, sys; print(int(json.load(open(sys.argv[1]))["total_timesteps"]))' "$MOSAIC_CONFIG_FILE")
mode=train
for size in 5x5 8x8 16x16; do
  echo "DoorKey $size: $((total / 3)) steps ($mode)"
  python -m cleanrl_worker.cli --config "$MOSAIC_CONFIG_FILE" --env-id "MiniGrid-DoorKey-$size-v0" \
    --total-timesteps "$((total / 3))" --extras "{\"mode\": \"$mode\"}"
  mode=resume_training
done
