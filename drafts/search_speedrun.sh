# Both searches, on one Hopper: at most six minutes in all, on held-out digits alone. LAB_DATA_DIR says where MNIST lies.
# Each setting's likely values stand first. What a search chooses then goes into RECIPE of the entry, its space into SPACE.
set -e
export PYTHONPATH=source_code
out=${OUT:-/tmp}
python3 source_code/benchmarks/speedrun_search.py course_net --minutes 2.8 --seeds 4 --finalists 12 --final-seeds 20 \
    --over batch=396,528,264 --over epochs=0.7,0.8,0.6,0.9,0.5 --over muon_rate=0.12,0.09,0.15 \
    --over momentum=0.85,0.75,0.9 --over adam_rate=0.01,0.02 --over smoothing=0.2,0.1 \
    --record "$out/speedrun_search-course_net.json"
python3 source_code/benchmarks/speedrun_search.py own_kernels --minutes 2.5 --seeds 4 --finalists 12 --final-seeds 20 \
    --over batch=384,512,256 --over epochs=0.5,0.55,0.45,0.6,0.4 --over muon_rate=0.12,0.09,0.15 \
    --over momentum=0.85,0.75,0.9 --over adam_rate=0.01,0.02 --over smoothing=0.2,0.1 \
    --record "$out/speedrun_search-own_kernels.json"
