# Read by every bash of the sandbox before its script (BASH_ENV). A program is written down instead of started.
# What only a run would tell is a token in all texts: \2, a number, \3. So no blank, slash or comma of it is ever cut.
declare -A __told
__dir=/tmp/.roll __line=0 FUNCNEST=200

__write() { # KIND WORD...
  __id=${EPOCHREALTIME:-$(builtin command -p date +%s.%N)}
  __id=${__id//[!0-9]/}$RANDOM
  { printf '%s\0' "$1" "$__id" "$__line" "${@:2}"; [ "$1" != command ] || { printf '\35\0'; builtin command -p env -0; }; printf '\36\0'; } >"$__dir/$__id"
}
__mark() { [ -z "${__answers[$1]-}" ] || { printf '%s\n' "${__answers[$1]}"; return; }; __write text "$1"; printf '\2%s\3\n' "$__id"; }

__program() { # a program that is not here; one that is given a shell, or a script, has that run
  local i
  __write command "$@"
  case ${1##*/} in python*) case ${2-} in -c | -) __python "$@"; return ;; esac ;; esac
  for ((i = 2; i <= $#; i++)); do
    case ${!i} in
      bash | sh | */bash | */sh) __bash "${@:i+1}"; return ;;
      *=*) ;;
      *.sh) __bash "${@:i}"; return ;;
    esac
  done
  __mark "$*"
}
__bash() {
  local i
  for ((i = 1; i <= $#; i++)); do
    case ${!i} in
      -c) break ;;
      [-+]o) i+=1 ;;
      [-+]*) ;;
      *) [ -f "${!i}" ] || { __write source "$PWD" "${!i}"; __write command bash "$@"; return 0; }; break ;;
    esac
  done
  builtin command -p bash "$@"
}
__python() { # its own code, without packages: what it cannot print stays open
  local text status
  [[ $2 != - ]] || set -- "$1" -c "$(builtin command -p cat)" "${@:3}"
  if [[ ${3-} =~ ^import\ torch[\;[:space:]]+print\(torch\.cuda\.device_count\(\)\)$ ]]; then
    case ${CUDA_VISIBLE_DEVICES-none} in
      none) __write counted; echo "$__gpus" ;;
      *$'\2'*) __mark "$*" ;;
      *) IFS=, builtin read -ra text <<<"$CUDA_VISIBLE_DEVICES"; echo "${#text[@]}" ;;
    esac
    return
  fi
  [[ $* != *$'\2'* ]] && text=$("$__interpreter" -I -S -B "${@:2}")
  status=$?
  if ((status)) && [[ $* == *@(print|write)* ]]; then __mark "$*"; elif [ -n "$text" ]; then printf '%s\n' "$text"; fi
  return $status
}
__filter() { # a tool that changes texts: what it makes of an open one is open
  local text="" piped="" status word
  [[ $1 != tail || ${2-} != -[fF]* ]] || return 0
  [[ $(builtin command -p stat -c %F -) == fifo ]] && piped=1 text=$(builtin command -p cat; printf x) && text=${text%x}
  if [[ $1 != cat && $text$* == *$'\2'* && ! ($text == 'GPU '* && $* =~ ^(wc\ -l|grep\ -c\ \^?GPU)$) ]]; then
    text=${text%$'\n'}
    __mark "${text:+$text | }$*"
    return
  fi
  if [ -n "$piped" ]; then printf %s "$text" | PATH=/usr/bin builtin command -p "$1" "${@:2}"; else PATH=/usr/bin builtin command -p "$1" "${@:2}"; fi
  status=$?
  case $1$status in
    *[!0-9]0 | *grep1 | expr1) ;;
    *) for word in "${@:2}"; do [ -e "$word" ] || __write file "$PWD" "$word"; done; __mark "$*" ;;
  esac
  return $status
}
__tool() { builtin command -p "$1" "${@:2}"; }
__quiet() { builtin command -p "$1" "${@:2}" 2>/dev/null; return 0; }
__full() { # realpath, readlink -f: of names, for few of them are here
  local word
  for word; do :; done
  case $word in $'\2'*) printf '%s\n' "$word" ;; *) builtin command -p realpath -ms -- "$word" ;; esac
}
__go() { # cd: a folder that is not here is made
  local word=
  for word; do :; done
  builtin "$@" 2>/dev/null || { builtin command -p mkdir -p -- "$word" && builtin "$1" -- "$word"; } 2>/dev/null || __write folder "$PWD" "$word"
  return 0
}
__has() { # command -v, which, type
  local word
  for word; do
    case $word in
      -*) continue ;;
      python* | pip* | ray | nvidia-smi | torchrun | accelerate) ;;
      *) builtin type "$word" &>/dev/null || { __write test "$__text" 1; return 1; } ;;
    esac
    printf '%s\n' "$word"
  done
}

# The trap before each command: which line it is, what it tests, which program it names by a path, where it writes.
__look() { # LINE TEXT
  __kind='' __words='' __run=''
  [[ ${BASH_SOURCE[1]-} != "$BASH_ENV" && ${FUNCNAME[1]-} != */* ]] || return
  __line=$1 __text=$2 PATH=/nowhere
  set +eux
  shopt -s extdebug
  local text=${2:0:4000} rest=$2 folders='' assigned='[A-Za-z_][A-Za-z0-9_]*(\[[^]]*\])?\+?='
  case $text in
    '[[ '*)
      __kind=test __run=$text text=${text#'[[ '}
      for rest in '&&' '||' '(' ')' '<' '>'; do text=${text// "$rest" / }; done
      __words=${text%']]'}
      return
      ;;
    '[ '* | 'test '*) __kind=test __run=$text text=${text#* } __words=${text%' ]'}; return ;;
    'case '*) text=${text#case } __kind=test __run='false' __words=${text% in*}; return ;;
    'source '* | '. '*) __kind=source __words=${text#* }; return ;;
  esac
  ((${#rest} < 400)) || rest=${rest: -400}
  while [[ $rest == *'>'* ]]; do
    rest=${rest#*'>'}
    [[ ! $rest =~ ^[\>|]?\ *(\"[^\"]*\"|[^][:space:]\&\|\;\<\>\(\)\'\"]+) ]] || folders+=" \\>${BASH_REMATCH[1]}"
  done
  while [[ $text =~ ^$assigned(\"[^\"]*\"|\'[^\']*\'|[^[:space:]\"\'\(])*[[:space:]]+(.*) ]]; do text=${BASH_REMATCH[3]}; done
  text=${text#exec } text=${text#command } rest=
  [[ $text =~ ^$assigned || ! $text =~ ^(\"[^\"]*\"|[^[:space:]]+) ]] || rest=${BASH_REMATCH[1]}
  [[ $rest == *[/\$]* && $rest != *[\(\`]* ]] || rest=
  [[ -z $rest && $folders != *[/\$]* ]] || __kind=program __words="$folders $rest"
}
__act() { # WORD...
  local i cause=
  case $__kind in
    test)
      [ -z "${__told[$__text]-}" ] || return 0
      __told[$__text]=1
      for ((i = 1; i < $#; i++)); do
        [[ ${!i} != *$'\2'* ]] || cause=1
        [[ ${!i} == -[bcdefghLkprsuwxGNOS] ]] || continue
        cause=1 rest=$((i + 1))
        [ -e "${!rest}" ] || __write file "$PWD" "${!rest}"
      done
      [ -z "$cause" ] || __write test "$__text" "${!#}"
      ;;
    source) [ -f "$1" ] || { __write source "$PWD" "$1"; return 1; } ;;
    program)
      while [[ ${1-} == '>'* ]]; do i=${1#'>'}; [[ $i != */* ]] || __quiet mkdir -p -- "${i%/*}"; shift; done
      [[ ${1-} != */* || $1 == *[[:space:]\'\"\$\`\\\;\&\|\<\>\(\)]* ]] || __at_path "$1" "${1##*/}"
      ;;
  esac
  return 0
}
__at_path() { # PATH NAME: a program by its path is a function of this name
  case $1 in /usr/* | /bin/*) eval "function $1 { $2 \"\$@\"; }"; return ;; esac
  if [ -f "$1" ]; then eval "function $1 { __bash $1 \"\$@\"; }"; return; fi
  __write file "$PWD" "$1"
  case $2 in
    python* | bash | sh) eval "function $1 { $2 \"\$@\"; }" ;;
    *) eval "function $1 { __program $1 \"\$@\"; }" ;;
  esac
}
__split() { # WORDS, each with a \6 behind it
  local words
  IFS=$'\6' builtin read -r -d '' -a words <<<"$1"
  words[-1]=${words[-1]%$'\n'}
  __act "${words[@]}"
}
__as_before() { return "$__was"; }

command_not_found_handle() { __program "$@"; }
for __name in cut sed awk grep egrep head tail wc tr sort uniq seq expr bc rev fold cat xargs column paste; do eval "$__name() { __filter $__name \"\$@\"; }"; done
for __name in basename dirname mktemp; do eval "$__name() { __tool $__name \"\$@\"; }"; done
for __name in mkdir rm cp mv touch chmod ln tee; do eval "$__name() { __quiet $__name \"\$@\"; }"; done
for __name in kill trap ulimit sleep enable hash clear; do eval "$__name() { :; }"; done
for __name in cd pushd; do eval "$__name() { __go $__name \"\$@\"; }"; done
for __name in which type; do eval "$__name() { __has \"\$@\"; }"; done
for __name in realpath readlink; do eval "$__name() { __full \"\$@\"; }"; done
bash() { __bash "$@"; }
sh() { __bash "$@"; }
command() { case ${1-} in -v | -V) __has "$@" ;; *) "$@" ;; esac; }
exec() { [ $# -eq 0 ] || { "$@"; builtin exit; }; }
[ -z "$__on" ] || exit() { return 0; }
nvidia-smi() { # how many there are is told; what else a GPU is, only a run tells
  local i
  if [[ $* != -L && $* != --list-gpus && ! "$* " =~ --query-gpu=(count|index|name|uuid)\  ]]; then __program nvidia-smi "$@"; return; fi
  __write counted
  for ((i = 0; i < __gpus; i++)); do case $* in *=count*) echo "$__gpus" ;; *=index*) echo "$i" ;; *) echo "GPU $(__mark "nvidia-smi $*")" ;; esac; done
}
read() { # from a person: what is typed is open
  local __i
  [[ $(builtin command -p stat -c %F -) == char* && $* != *-u* ]] || { builtin read "$@"; return; }
  for ((__i = 1; __i <= $#; __i++)); do
    case ${!__i} in
      -*[adinNpt]) ((__i++)) ;;
      [A-Za-z_]*) printf -v "${!__i}" %s "$(__mark "read ${!__i}")" ;;
    esac
  done
  return 1
}
scontrol() {
  if [[ $* == *hostnames* && ${SLURM_NNODES-} =~ ^[0-9]+$ ]]; then seq -f node%.0f "$SLURM_NNODES"; else __program scontrol "$@"; fi
}
builtin trap 'builtin wait' EXIT
builtin trap '__was=$?; __look "$LINENO" "$BASH_COMMAND"
  if [ -n "$__kind" ]; then
    __words=$(builtin trap - DEBUG; builtin exec 2>/dev/null; eval "printf \"%s\6\" $__words"; __as_before; eval "$__run"; printf %s $?)
    __split "$__words"
  fi' DEBUG
set -T
