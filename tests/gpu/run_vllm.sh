#!/usr/bin/env bash
# run_vllm.sh unpack|setup|kvsan|smoke|accept|loads|cost|csan|mp|soak|hooks: the acceptance runs on a GPU machine without a network.
# Parts of vLLM come in .vllm/ (carried, one a call); results go to $OUT/results.jsonl. See tests/gpu/README.md.
set -uo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
parts=/tmp/parts root=/tmp/vllm
out=${OUT:-/tmp/out}; mkdir -p "$out" "$parts" /tmp/traces
use() { export PYTHONPATH="$root/v$1:$root/site:$root/kvsan" KVSAN_VERSION="$1" PYTHONUNBUFFERED=1; }
# one NAME SECONDS ARGS…: a configuration in the background, its words in a log of its own
one() {
    local name=$1 limit=$2; shift 2
    (timeout -k 5 "$limit" python3 -W ignore "$here/tests/gpu/vllm_acceptance.py" "$@" --out "$out/results.jsonl" \
        > "/tmp/traces/$name.log" 2>&1 || { echo "FAILED $name"; tail -n 12 "/tmp/traces/$name.log" | cut -c1-300; }) &
}
table() { python3 "$here/tests/gpu/table.py" "$out/results.jsonl"; }
modes() { # modes VERSION RUNNER [--graphs]: the five fence modes side by side
    use "$1"; export KVSAN=1
    for fence in none store load all fixed; do
        one "$1-$2-$fence${3:-}" 170 accept --runner "$2" --fence "$fence" ${3:-} \
            --trace "/tmp/traces/$1-$2-$fence${3:-}.jsonl.gz"
    done
    wait
}
case ${1:?} in
unpack) cp "$here"/.vllm/bundle.* "$parts/"; ls -l "$parts" ;;
setup)
    mkdir -p "$root/kvsan"
    cat "$parts"/bundle.* | python3 -c "import sys,tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|xz').extractall('$root', filter='fully_trusted')" || exit
    rm -f "$parts"/*
    ;&
kvsan) # the code alone, after a change
    mkdir -p "$root/kvsan"; rm -rf "$root/kvsan/kvsan"
    cp -r "$here"/{model,runtime,checker}/kvsan "$root/kvsan/"
    dist=$root/kvsan/kvsan-0.1.0.dist-info; mkdir -p "$dist"
    printf 'Metadata-Version: 2.1\nName: kvsan\nVersion: 0.1.0\n' > "$dist/METADATA"
    printf '[vllm.general_plugins]\nkvsan = kvsan.checker.attach.vllm:plugin\n' > "$dist/entry_points.txt"
    du -sm "$root"/* ;;
smoke) # one run of each version, everything shown
    export KVSAN=1
    for version in ${2:-0.24.0 0.23.0}; do use "$version"; one "smoke-$version" 150 accept --trace "/tmp/traces/smoke-$version.jsonl.gz"; done
    wait; for log in /tmp/traces/smoke-*.log; do echo "== $log"; grep -v '^{' "$log" | tail -n 25 | cut -c1-400; done; table ;;
accept) # 0.23.0: five fence modes, eager and graphs, both runners
    for runner in v1 v2; do modes 0.23.0 $runner; modes 0.23.0 $runner --graphs; done
    cp /tmp/traces/0.23.0-v{1,2}-{none,fixed}.jsonl.gz "$out/" 2>/dev/null; table ;;
loads) # 0.24.0: at least 500 loads, without and with the load fence
    use 0.24.0; export KVSAN=1
    for runner in v1 v2; do for fence in none load; do
        one "0.24.0-$runner-$fence" 280 accept --runner $runner --fence $fence --requests 1200 --tokens 32 \
            --trace "/tmp/traces/0.24.0-$runner-$fence.jsonl.gz"
    done; one "0.24.0-$runner-graphs" 280 accept --runner $runner --graphs --requests 300 --tokens 32; done
    wait; cp /tmp/traces/0.24.0-v{1,2}-none.jsonl.gz "$out/" 2>/dev/null; table ;;
cost) # one after the other: nothing else runs
    use 0.24.0; export KVSAN=1
    one cost 180 cost --windows 24; wait
    one cost--graphs 120 cost --windows 48 --graphs; wait
    for more in "" --graphs; do one "breakdown$more" 90 cost --windows 6 --breakdown $more; wait; done
    table ;;
csan) # PyTorch's own sanitizer, and a process that never had kvsan
    use 0.24.0; unset KVSAN; one csan 110 csan --windows 12; wait; table ;;
mp) # processes apart, merged
    use 0.24.0; export KVSAN=1; rm -f /tmp/traces/mp-*.gz
    one mp 150 mp --trace "/tmp/traces/mp-%p.jsonl.gz"; wait; ls -l /tmp/traces/mp-*.gz
    python3 -m kvsan.checker merge /tmp/traces/mp-*.gz -o "$out/mp-merged.jsonl.gz"
    python3 -m kvsan.checker check "$out/mp-merged.jsonl.gz" | tail -n 40; table ;;
soak) # memory and manners beside each other; the other connector and the hooks of torch
    use 0.24.0; export KVSAN=1
    one soak $((${2:-300} + 90)) soak --graphs --seconds "${2:-300}" --cpu-gib 2
    for runner in v1 v2; do one "fault-$runner" 150 fault --runner $runner; done
    for version in 0.23.0 0.24.0; do
        use $version; one "$version-offloading" 150 accept --connector OffloadingConnector --requests 160 --tokens 32 \
            --trace "/tmp/traces/$version-offloading.jsonl.gz"
    done
    bash "$0" hooks; wait; cp /tmp/traces/*-offloading.jsonl.gz "$out/" 2>/dev/null; table ;;
hooks) # attach.torch on real streams
    cd "$here"; unset KVSAN
    PYTHONPATH=model:checker:runtime:tests:$root/site timeout 200 python3 -m pytest -q -c /dev/null --rootdir . \
        --noconftest -p no:cacheprovider -m gpu tests/gpu/test_attach_torch.py 2>&1 | tail -n 60 ;;
esac
