#!/usr/bin/env bash
# A run as a job of a Ray cluster with a dashboard: ray_submit.sh CONFIG.yaml [key=value ...]
# RAY_API_SERVER_ADDRESS: where the dashboard is, http://HEAD:8265. CONFIG.yaml is a path on the cluster's disk.
# Needs the extra `launch` here and on the cluster. `ray job stop` ends what this starts.
set -euo pipefail

if [ $# -lt 1 ] || [ -z "${RAY_API_SERVER_ADDRESS:-}" ]; then
    echo "usage: RAY_API_SERVER_ADDRESS=http://HEAD:8265 $0 CONFIG.yaml [key=value ...]" >&2
    exit 2
fi

ray job submit --no-wait --submission-id "roll-$(date +%Y%m%d-%H%M%S)" -- \
    roll run "$@" --max_restarts 3 resume_from_checkpoint=true
