#!/usr/bin/env bash
# run_vllm.sh PART…, each of unpack setup kvsan smoke accept loads mp offload fault hooks cost breakdown dissect csan soak soak-and-more everything: the
# acceptance runs on a GPU machine without a network. Parts of vLLM come in .vllm/ (carried, one a call). Each result is
# a line on stdout that begins with RESULT, and one of $OUT/results.jsonl as soon as it is there. See README.md.
set -uo pipefail; shopt -s nullglob
here=$(cd "$(dirname "$0")/../.." && pwd)
parts=/tmp/parts root=/tmp/vllm
out=${OUT:-/tmp/out}; mkdir -p "$out" "$parts" /tmp/traces
results=$out/results.jsonl
ends=$((SECONDS + ${RUN_VLLM_SECONDS:-570}))  # of a call, which is killed at 600 s
use() { export PYTHONPATH="$root/v$1:$root/site:$root/kvsan" KVSAN_VERSION="$1" PYTHONUNBUFFERED=1; }
say() { printf 'RESULT %s\n' "$1"; printf '%s\n' "$1" >> "$results"; }
# at_most N: waits until fewer than N background runs are left
at_most() { while (($(jobs -rp | wc -l) >= $1)); do wait -n; done; }
# run NAME SECONDS COMMAND…: in the time that the call has left; its words in a log of its own
run() {
    local name=$1 limit=$2 left=$((ends - SECONDS)) log="/tmp/traces/$1.log" status=0; shift 2
    ((left < limit)) && limit=$left
    if ((limit < 20)); then say "{\"run\": \"$name\", \"failed\": \"not started: the call has no time left\"}"; return 1; fi
    timeout -k 5 "$limit" "$@" > "$log" 2>&1 || status=$?
    grep -a '^RESULT ' "$log"
    ((status == 0)) && return
    say "{\"run\": \"$name\", \"failed\": \"status $status, limit $limit s\"}"
    grep -av '^RESULT ' "$log" | tail -n 12 | cut -c1-300
    return 1
}
# one NAME SECONDS ARGS…: a configuration, and what its trace says; with BARE=1 it writes none
one() {
    local name=$1 limit=$2 trace=/tmp/traces/$1.jsonl.gz; shift 2
    [[ ${BARE:-} ]] && trace=
    run "$name" "$limit" python3 -W ignore "$here/tests/gpu/vllm_acceptance.py" "$@" --name "$name" \
        --trace "$trace" --out "$results" || return
    [[ -n $trace ]] && run "$name.check" 200 python3 "$here/tests/gpu/trace_verdict.py" "$name" "$trace" "$results"
    return 0
}
# apart NAME SECONDS ARGS…: the worker in a process of its own; each process's own verdict, then that of the merged logs
apart() {
    local name=$1 limit=$2 folder=/tmp/traces/$1; shift 2
    rm -rf "$folder"; mkdir -p "$folder"
    KVSAN_OPTIONS="exitcode=0:incident=0:max_reports=2:trace=$folder/%p.jsonl.gz:report=$folder/%p.json" \
        run "$name" "$limit" python3 -W ignore "$here/tests/gpu/vllm_acceptance.py" mp "$@" --name "$name" --out "$results"
    run "$name.merge" 100 python3 -m kvsan.checker merge "$folder"/*.jsonl.gz -o "/tmp/traces/$name.jsonl.gz" || return
    run "$name.check" 100 python3 "$here/tests/gpu/trace_verdict.py" "$name" "/tmp/traces/$name.jsonl.gz" "$results" \
        "$folder"/*.json
}
keep() { # a few traces go home: eight files at most, 16 MiB each
    for trace in "$@"; do [[ $(stat -c %s "$trace" 2> /dev/null || echo 0) -gt 0 ]] && cp "$trace" "$out/"; done
}
accept_begin() { # 0.23.0: five fence modes, eager and graphs, both runners
    use 0.23.0; export KVSAN=1
    for runner in v1 v2; do for graphs in "" --graphs; do for fence in none store load all fixed; do
        at_most "$1"; one "0.23.0-$runner${graphs#-}-$fence" 240 accept --runner $runner --fence $fence $graphs &
    done; done; done
}
accept() { accept_begin 10; wait; keep /tmp/traces/0.23.0-v{1,2}-none.jsonl.gz; }
loads_begin() { # 0.24.0: at least 500 loads each, without and with the load fence, eager and graphs, both runners
    use 0.24.0; export KVSAN=1
    for runner in v1 v2; do for graphs in "" --graphs; do for fence in none load; do
        one "0.24.0-$runner${graphs#-}-$fence" 420 accept --runner $runner --fence $fence $graphs --requests 1200 --tokens 32 &
    done; done; done
}
loads() { loads_begin; wait; keep /tmp/traces/0.24.0-v{1,2}-none.jsonl.gz; }
mp() { # processes apart: without a fence and with all that mends it
    export KVSAN=1
    for version in 0.24.0:load 0.23.0:fixed; do for runner in v1 v2; do for fence in none "${version#*:}"; do
        at_most "${1:-4}"; use "${version%:*}"
        KVSAN_TEST_FENCE=$fence apart "mp-${version%:*}-$runner-$fence" 150 --runner $runner --fence $fence --cpu-gib 2 &
    done; done; done
}
offload() { # the other connector
    export KVSAN=1
    for version in 0.24.0 0.23.0; do for runner in v1 v2; do for graphs in "" --graphs; do
        at_most "${1:-6}"; use $version
        one "$version-$runner${graphs#-}-offloading" 150 accept --runner $runner $graphs --connector OffloadingConnector \
            --requests 160 --tokens 32 --cpu-gib 2 &
    done; done; done
}
fault() { # kvsan itself breaks
    use 0.24.0; export KVSAN=1
    for runner in v1 v2; do for beside in 0 1; do
        at_most "${1:-6}"
        KVSAN_OPTIONS="exitcode=0:incident=0:max_reports=2:beside=$beside" BARE=1 \
            one "fault-$runner-beside$beside" 150 fault --runner $runner --cpu-gib 2 &
    done; done
}
soak() { # memory and manners, and the same server without kvsan beside it
    use 0.24.0
    KVSAN=1 BARE=1 one soak $(($1 + 150)) soak --graphs --seconds "$1" --cpu-gib 2 --samples "$out/memory.jsonl" &
    KVSAN=0 BARE=1 one control $(($1 + 150)) soak --graphs --seconds "$1" --cpu-gib 2 --samples "$out/memory.jsonl" &
}
hooks() { # attach.torch on real streams; where it ends, if it ends badly
    local xml=/tmp/traces/hooks.xml status=0; rm -f $xml
    (cd "$here"; unset KVSAN KVSAN_OPTIONS; python3 scripts/native.py || echo "run_vllm.sh: no C extensions, going on without"
     PYTHONPATH=model:checker:runtime:tests:$root/site timeout -k 5 200 python3 -X faulthandler -m pytest -q -c /dev/null \
        --rootdir . --noconftest -p no:cacheprovider --junitxml $xml -m gpu tests/gpu/test_attach_torch.py \
        > /tmp/traces/hooks.log 2>&1) || status=$?
    say "$(python3 "$here/tests/gpu/table.py" --junit $xml $status)"
    ((status)) && tail -n 60 /tmp/traces/hooks.log | cut -c1-240
    return 0
}
part() {
    case $1 in
    unpack) cp "$here"/.vllm/bundle.* "$parts/"; ls -l "$parts" ;;
    setup)
        mkdir -p "$root/kvsan"
        cat "$parts"/bundle.* | python3 -c "import sys,tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|xz').extractall('$root', filter='fully_trusted')" || exit
        rm -f "$parts"/*
        part kvsan ;;
    kvsan) # the code alone, after a change
        mkdir -p "$root/kvsan"; rm -rf "$root/kvsan/kvsan"
        cp -r "$here"/{model,runtime,checker}/kvsan "$root/kvsan/"; cp "$here/tests/gpu/fences.py" "$root/kvsan/kvsan_fences.py"
        python3 "$here/scripts/native.py" --into "$root/kvsan" || echo "run_vllm.sh: no C extensions, going on without"
        local name entry
        for name in kvsan kvsan_fences; do
            entry=kvsan.checker.attach.vllm:plugin; [[ $name == kvsan ]] || entry=kvsan_fences:plugin
            dist=$root/kvsan/$name-0.1.0.dist-info; mkdir -p "$dist"
            printf 'Metadata-Version: 2.1\nName: %s\nVersion: 0.1.0\n' $name > "$dist/METADATA"
            printf '[vllm.general_plugins]\n%s = %s\n' $name $entry > "$dist/entry_points.txt"
        done
        du -sm "$root"/* ;;
    smoke) # one run of each version
        export KVSAN=1
        for version in 0.24.0 0.23.0; do use $version; one "smoke-$version" 150 accept & done; wait ;;
    accept) accept ;;
    loads) loads ;;
    mp) mp; wait ;;
    offload) offload; wait ;;
    fault) fault; wait ;;
    hooks) hooks ;;
    soak) soak "${SOAK_SECONDS:-300}"; wait ;;
    soak-and-more) # what fits beside the two servers: five at a time besides
        soak "${SOAK_SECONDS:-300}"; hooks & mp 7; fault 7; offload 7; wait ;;
    everything) # all but cost in one call: the long ones first, the rest in the places that are left
        soak "${SOAK_SECONDS:-300}"; hooks &
        loads_begin; accept_begin 14; mp 13; fault 14; offload 14; wait
        keep /tmp/traces/0.2{3,4}.0-v{1,2}-none.jsonl.gz ;;
    cost) # one after the other: nothing else runs
        use 0.24.0
        export KVSAN=1
        BARE=1 one cost-graphs${COST_NAME:-} 170 cost --windows ${COST_WINDOWS:-40} --graphs ${COST_MORE:-}
        [[ ${COST_GRAPHS_ONLY:-} ]] || BARE=1 one cost 180 cost --windows 24 ${COST_MORE:-} ;;
    breakdown) # by hook
        use 0.24.0
        export KVSAN=1
        for more in "" --graphs; do BARE=1 one "breakdown${more#-}" 90 cost --windows 6 --breakdown $more; done ;;
    dissect) # between on and off
        use 0.24.0; export KVSAN=1
        BARE=1 one dissect 300 cost --windows ${COST_WINDOWS:-20} --graphs --dissect ${COST_MORE:-} ;;
    csan) # PyTorch's own sanitizer, and a process that never had kvsan
        use 0.24.0; KVSAN=0 BARE=1 one csan 110 csan --windows 12 ;;
    *) echo "run_vllm.sh: no part $1; accepted: $(sed -n '2s/.*each of \(.*\): the/\1/p' "$0")" >&2; exit 2 ;;
    esac
}
(($#)) || part ""
for each in "$@"; do part "$each"; done
[[ -s $results ]] || exit 0
echo; python3 "$here/tests/gpu/table.py" "$results"
tar -czf "$out/logs.tgz" -C /tmp/traces $(cd /tmp/traces && ls ./*.log 2> /dev/null) 2> /dev/null
exit 0
