#!/usr/bin/env bash
# run_engine.sh smoke|all|tests|bisect|cost|throughput: kvsan's own engine on a GPU machine without a network.
# Needs msgspec as a wheel in .whl/ (git-ignored, carried); the rest is there (torch, cuda-bindings, click, rich,
# networkx, pytest). Lines go to $OUT/engine.jsonl as they come, logs to $OUT/logs.txt as each ends. `all` ends within 600 s: what runs longer
# than its share is stopped and keeps the lines that it has. Nothing else runs beside `tests`, `cost` and `throughput`.
set -uo pipefail
cd "$(dirname "$0")/../.."
export OUT=${OUT:-/tmp/out} PYTHONUNBUFFERED=1
logs=/tmp/engine-logs
mkdir -p "$OUT" "$logs"
if ls .whl/*.whl >/dev/null 2>&1 && [ ! -d /tmp/site ]; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target /tmp/site .whl/*.whl || exit 2
fi
export PYTHONPATH=model:runtime:checker:tests:/tmp/site
python3 scripts/native.py || echo "run_engine.sh: no C extensions, going on without"  # says by itself why there are none
kvsan="python3 -m kvsan.checker"
limited() { # limited SECONDS NAME COMMAND…: its output goes to the logs; a line says how it ended
    local limit=$1 name=$2 began=$SECONDS; shift 2
    timeout -s INT -k 10 "$limit" "$@" >"$logs/$name" 2>&1
    local rc=$?
    printf '{"part": "run", "name": "%s", "rc": %d, "seconds": %d, "limit": %d}\n' \
        "$name" "$rc" $((SECONDS - began)) "$limit" | tee -a "$OUT/engine.jsonl"
    { echo "== $name"; cat "$logs/$name"; } >>"$OUT/logs.txt"
    tail -n "${LINES_SHOWN:-12}" "$logs/$name" | cut -c1-300
}
case "${1:-all}" in
smoke) # two minutes: what is there, the tests of the device, one small serving run
    python3 -c "
import torch; from cuda.bindings import driver, __version__ as v
print('torch', torch.__version__, 'cuda-bindings', v, 'driver', driver.cuDriverGetVersion())
print(torch.cuda.get_device_name(), torch.cuda.Stream.priority_range())"
    LINES_SHOWN=60 bash "$0" tests
    limited 45 smoke python3 benchmarks/gpu_engine.py smoke ;;
tests)
    limited 80 tests python3 -m pytest -q -ra -c /dev/null --rootdir . --noconftest -p no:cacheprovider -m gpu \
        --durations 5 tests/gpu/test_cuda_device.py ;;
bisect) # side by side: only right and wrong is looked at
    run="--device cuda --rounds 3 --concurrency 64 --run-ahead 1 --seed 7"
    for design in vllm-after-46278 vllm-before-46278; do
        LINES_SHOWN=30 limited 110 "bisect-$design" $kvsan bisect --design "$design" --requests 500 $run &
        LINES_SHOWN=30 limited 110 "bisect-$design-spin" $kvsan bisect --design "$design" --requests 500 $run --spin 2000000 &
    done
    LINES_SHOWN=30 limited 110 default $kvsan run --design kvsan-default --requests 500 $run &
    LINES_SHOWN=30 limited 110 default-spin $kvsan run --design kvsan-default --requests 500 $run --spin 2000000 &
    wait ;;
cost) limited 300 cost python3 benchmarks/gpu_engine.py cost --seconds ${SECONDS_EACH:-115} ${COST_ARGS:-} ;;
throughput) limited 140 throughput python3 benchmarks/gpu_engine.py throughput --seconds ${SECONDS_EACH:-115} ;;
all) for part in tests bisect cost throughput; do bash "$0" $part; done ;; # 80 + 120 + 140 + 140 s at most
*) sed -n 2p "$0"; exit 2 ;;
esac
