"""Every setting of precision_tool with its default.

This is `precision_tool/lib/config/config.py`, which may be edited, and as `config.example.py` the example: copy it to
`precision_config.py` in the folder you work in and change what you need (the other lines may go). Later places win:

    precision_tool/lib/config/config.py
    precision_config.py in the working folder
    environment variables PRECISION_TOOL_<NAME>, for example PRECISION_TOOL_WORKERS=4
    options of the command, for example --data DIR

Only lines NAME = VALUE are allowed, VALUE a number, a text, a name from above or os.path.join('a', 'b'). The file is
read, never executed. The config.py of the vendor's first tool is read too: its ROOT_DIR and DATA_ROOT_DIR set DATA, and
names without effect are named with what replaces them.
"""

# Steps of the training run that are dumped on the NPU: '0', or several as '0|5|10-20' (at most 100 groups).
# '' or no such line dumps every step.
TF_DUMP_STEP = "0"

# What an NPU dump holds: the 'input' or 'output' tensors of each op or 'all', as a 'tensor' each or as its 'stats'
# (minimum, maximum, mean …: small, and without the values). An argument of the calls in tf_config wins.
DUMP_MODE = "all"
DUMP_DATA = "tensor"

# Names of the ops that are dumped, with a space between them. '' dumps all.
DUMP_LAYER = ""

# 'on': what quantised ops were before is dumped too.
QUANT_DUMPABLE = "off"

# How precise the NPU computes, for every run that the training helper sets up; '' leaves it to the script, and where
# that says nothing to the device. Arguments of the calls in tf_config win. The adapter takes one of the two modes:
#   'force_fp32', 'must_keep_origin_dtype', 'allow_mix_precision', 'allow_mix_precision_fp16',
#   'allow_mix_precision_bf16', 'allow_fp32_to_fp16', 'allow_fp32_to_bf16', 'force_fp16' or 'cube_fp16in_fp32out';
#   'origin', 'mixed_float16', 'mixed_bfloat16', 'mixed_hif8', 'fp16', 'cube_fp16in_fp32out' or 'cube_hif8'.
PRECISION_MODE = ""
PRECISION_MODE_V2 = ""

# Files for single ops: how a kernel computes (lines NAME=high_precision below [ByNodeName] or [ByOpType]), and which
# types it gets (lines NAME::InputDtype:float,OutputDtype:float).
OP_PRECISION_MODE = ""
CUSTOMIZE_DTYPES = ""

# 'off': matrix units multiply float32 as float32, 'on': as HF32, which has 12 bits less (Atlas A2, A3 and newer).
ALLOW_HF32 = ""

# 'on': kernels repeat themselves to the last bit; slower. 'off': as fast as they can.
DETERMINISTIC = ""

# How much the compiler of ops keeps for debugging while a run is dumped, 0 to 4: op_debug_level of NpuOptimizer.
OP_DEBUG_LEVEL = 4

# The seed of what is random in a training script that imports tf_config. PRECISION_TOOL_SEED in its environment wins.
DUMP_SEED = 0

# The fusion switch file of single passes, which action='fusion_switch' gives to the training script and `fusion on` and
# `fusion off` change. '' is fusion/fusion_switch.cfg in the data folder, or without one the installed file.
FUSION_SWITCH_FILE = ""

# Where the CANN Toolkit is installed. Its tools atc and msaccucmp.py are optional here.
CMD_ROOT_PATH = "/usr/local/Ascend"

# Who compares, converts graphs and decodes: 'native' (this tool, needs nothing else), 'cann' (atc and msaccucmp of the
# Toolkit), or 'auto' (native, and the Toolkit for what native cannot read). Option --engine of vc, ac and dc.
ENGINE = "native"

# The Python that runs the Toolkit's msaccucmp.py. '' is the one that runs this tool.
PYTHON = ""

# How many seconds a program of the Toolkit may take. 0 = no limit.
TOOLKIT_SECONDS = 3600

# The data folder: NPU dumps and graphs below npu/, benchmark tensors below tf/. Option --data.
DATA = "precision_data"

# Where results are written. '' writes to temp/ in the data folder, or to ./precision_work where the data folder
# cannot be written. Option --work.
WORK = ""

# Ops with a cosine similarity below this are listed by ac and vcs. From -1 to 1. Option -c of vcs.
THRESHOLD = 0.98

# How many ops ac, vc and vcs list at most, 0 = all. Option -l.
LIMIT = 3

# Two values a (NPU) and b (benchmark) are equal when |a - b| <= ATOL + RTOL * |b|. Options -al and -rl.
ATOL = 0.001
RTOL = 0.001

# How many values of a tensor are printed. Option -p.
PRINT_COUNT = 20

# How many workers read and compare at the same time. 0 = one for each core.
WORKERS = 0

# How many columns the output has. 0 = as many as the terminal, 80 without one. At the prompt also `set width N`.
WIDTH = 0
LANGUAGE = ""

# Colours: 'dark' or 'light' for the background of your terminal, 'plain' for none (as NO_COLOR=1 in the environment).
THEME = "dark"

# What is written to precision_tool.log in the folder of results: 'debug', 'info', 'warning', 'error' or 'off'.
# Option --log-level.
LOG_LEVEL = "warning"
