#!/usr/bin/env bash
# @description: BabyAI's GoTo levels: a red ball alone, among others, any object, a whole room
# @env_family: babyai
# @phases: 4
# @total_timesteps: 800000
# @author: MOSAIC
# @algo: ppo
# @env_id: BabyAI-GoToRedBallNoDists-v0
set -euo pipefail

total=$(python -c 'import json, sys; print(int(json.load(open(sys.argv[1]))["total_timesteps"]))' "$MOSAIC_CONFIG_FILE")
mode=train
for level in GoToRedBallNoDists GoToRedBall GoToObj GoToLocal; do
  echo "$level: $((total / 4)) steps ($mode)"
  python -m cleanrl_worker.cli --config "$MOSAIC_CONFIG_FILE" --env-id "BabyAI-$level-v0" \
    --total-timesteps "$((total / 4))" --extras "{\"mode\": \"$mode\"}"
  mode=resume_training
done
