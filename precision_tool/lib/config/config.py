"""Settings, edit them here. Values only: this file is read, never executed. config.example.py explains each."""

# Set the steps to dump, for example '0|5|10-20'. '' dumps every step.
TF_DUMP_STEP = "0"

# What a dump holds: 'input', 'output' or 'all'; 'tensor' or 'stats'; only these ops ('' = all); quantised ops too.
DUMP_MODE = "all"
DUMP_DATA = "tensor"
DUMP_LAYER = ""
QUANT_DUMPABLE = "off"

# How precise the NPU computes; '' is as the script and the device have it. Files for single ops; HF32 and one
# order of sums 'on' or 'off'.
PRECISION_MODE = ""
PRECISION_MODE_V2 = ""
OP_PRECISION_MODE = ""
CUSTOMIZE_DTYPES = ""
ALLOW_HF32 = ""
DETERMINISTIC = ""

# What the compiler of ops keeps for debugging (0 to 4); the seed of what is random; the file of single fusion passes.
OP_DEBUG_LEVEL = 4
DUMP_SEED = 0
FUSION_SWITCH_FILE = ""

# The tools atc and msaccucmp.py are looked for below the Toolkit installation path.
CMD_ROOT_PATH = "/usr/local/Ascend"

# Who compares and decodes: 'native', 'cann' or 'auto'; the Python that runs msaccucmp ('' = ours); its time limit.
ENGINE = "native"
PYTHON = ""
TOOLKIT_SECONDS = 3600

# The data folder, and the folder results are written to ('' = temp/ in the data folder).
DATA = "precision_data"
WORK = ""

# Ops with a cosine similarity below THRESHOLD are listed, LIMIT of them.
THRESHOLD = 0.98
LIMIT = 3

# When two tensors are compared: tolerances, and how many values are shown.
ATOL = 0.001
RTOL = 0.001
PRINT_COUNT = 20

# Parallel workers, 0 = one for each core.
WORKERS = 0

# What is shown: columns (0 = as wide as the terminal), 'dark', 'light' or 'plain', and what goes to temp/*.log.
WIDTH = 0
LANGUAGE = ""
THEME = "dark"
LOG_LEVEL = "warning"
