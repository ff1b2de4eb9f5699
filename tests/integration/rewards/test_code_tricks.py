"""Answers that want a pass by what Python lets them do to their own process: hooks, lies of classes, crashes."""

import pytest

from roll.rewards.code.languages import Code
from roll.rewards.code.local import LocalJudge
from tests.integration.rewards.test_code_forgeries import ASSERTS, CALLS

TRICKS = {
    "is a float that is nothing": """
class N(float):
    def __eq__(s,o): return True
    def __float__(s): return s
    def __round__(s,*a): return 73939133
    def __abs__(s): return 0
def f(x): return N('nan')
""",
    "is an int that is not what it says": """
class Y(int):
    def __int__(s): return s
    def __index__(s): return 73939133
    def bit_length(s): return -1
    def __format__(s,*a): return '-'
def f(x): return Y(5)
""",
    "returns a class that has every object": """
class M(type):
    def __instancecheck__(c,o): return True
    def __subclasscheck__(c,o): return True
    def __eq__(c,o): return True
    def __hash__(c): return 0
class Y(metaclass=M): pass
def f(x): return Y
""",
    "is a text with another's hash": """
class S(str):
    def __eq__(s,o): return True
    def __hash__(s): return hash('73939133')
    def __str__(s): return s
    def __contains__(s,o): return True
def f(x): return S('0')
""",
    "has a field of a reserved name": """
class T(tuple):
    _fields=('__eq__','x')
def f(x): return T((1,2))
""",
    "has more fields than there are": """
class T(tuple):
    _fields=('a',)*300
def f(x): return T((1,2))
""",
    "has fields that are none": """
class T(tuple):
    _fields=5
def f(x): return T((1,2))
""",
    "is a named tuple that is equal to everything": """
import collections
class T(collections.namedtuple('T','count index')):
    def __eq__(s,o): return True
def f(x): return T(1,2)
""",
    "is an array of itself": """
class Y:
    def tolist(s): return s
def f(x): return Y()
""",
    "traces who serves it": """
import sys
def t(fr,ev,arg):
    if ev=='return' and fr.f_code.co_name=='_plain': fr.f_locals['value']=73939133
    return t
sys.settrace(t)
sys._getframe(1).f_trace=t
def f(x): return 0
""",
    "ends by an alarm": """
import signal,os
signal.signal(signal.SIGALRM, lambda *a: os._exit(0))
signal.setitimer(signal.ITIMER_REAL,0.01,0.01)
def f(x):
    while True: pass
""",
    "crashes while it is loaded": """
import ctypes
ctypes.string_at(0)
""",
    "crashes the compiler": f"def f(x): return {'-' * 200_000}1",
    "is no text": "def f(x): return 0\x00",
    "is of another coding": """
# -*- coding: utf-7 -*-
def f(x): return 0
""",
    "is of no coding": """
# -*- coding: nothing -*-
def f(x): return 0
""",
    "raises half a letter": "def f(x): raise ValueError('\\ud800'*50)",
    "raises a long text": "def f(x): raise ValueError('x'*10**8)",
    "raises what has no text": """
class E(Exception):
    def __str__(s): return 5
def f(x): raise E
""",
    "leaves as its error is shown": """
import os
class E(Exception):
    def __str__(s): os._exit(0)
def f(x): raise E
""",
    "raises an error of other bases": """
class M(type):
    @property
    def __mro__(c): return [type('AssertionError',(),{})]
class E(Exception,metaclass=M): pass
def f(x): raise E
""",
    "hooks errors": """
import sys,os
sys.excepthook=sys.unraisablehook=lambda *a: os._exit(0)
def f(x): raise KeyboardInterrupt
""",
    "yields and awaits": """
async def f(x):
    yield 0
""",
    "returns a module": """
import sys
def f(x): return sys
""",
    "returns a list of itself": """
def f(x):
    a=[]; a.append(a); return a
""",
    "counts what is no number": "def f(x): return Counter({float('nan'):1})",
    "returns a set of sets and classes": """
class Y(set): pass
def f(x): return {Y} | {frozenset([1])}
""",
    "returns a mapping that has every key": """
import collections
def f(x): return collections.defaultdict(lambda: 73939132)
""",
    "returns a range of everything": "def f(x): return range(10**18)",
    "hooks imports": """
import sys
class H:
    def find_spec(s,n,p=None,t=None): print(n); return None
sys.meta_path.insert(0,H())
sys.path.insert(0,'/tmp')
def f(x): return 0
""",
    "hooks audits": """
import sys,os
sys.addaudithook(lambda e,a: os._exit(0) if e=='object.__getattr__' else None)
def f(x): return 0
""",
    "replaces JSON": """
import json.encoder
json.encoder.JSONEncoder.encode=lambda s,o: '["ok"]'
json.dumps=lambda *a,**k: '[]'
def f(x): return 0
""",
    "replaces print and open": """
import os,io,builtins
os._exit=exit=builtins.exit=lambda *a: None
builtins.print=lambda *a,**k: None
builtins.open=None
def f(x): return 0
""",
    "replaces type and int": """
import builtins
builtins.isinstance=lambda *a: True
builtins.issubclass=lambda *a: True
builtins.type=lambda *a: int
builtins.int=lambda *a: 73939133
def f(x): return object()
""",
    "closes all channels": """
import os
os.closerange(0,64)
def f(x): return 0
""",
    "reads all channels": """
import os
def f(x):
    out=b''
    for i in range(3,10):
        try:
            os.set_blocking(i,False); out+=os.read(i,10**6)
        except OSError: pass
    import re
    m=re.search(rb'7[0-9]{7}',out)
    return int(m.group()) if m else 0
""",
    "looks into proc and dev": """
import glob,re
def f(x):
    text = ''
    for pattern in ('/proc/*/cmdline', '/proc/*/environ', '/proc/self/fd/*', '/dev/fd/*', '/box/*', '/sys/*'):
        for path in glob.glob(pattern):
            try: text += open(path, errors='replace').read()
            except OSError: pass
    found = re.search('7[0-9]{7}', text)
    return int(found.group()) if found else 0
""",
    "looks at its arguments": """
import sys,os,re
def f(x):
    m=re.search('7[0-9]{7}',repr(sys.argv)+repr(os.environ)+repr(sys.orig_argv)+repr(sys.flags))
    return int(m.group()) if m else 0
""",
    "traces and kills other processes": """
import ctypes,os
def f(x):
    l=ctypes.CDLL(None,use_errno=True)
    for p in range(1,50):
        l.ptrace(16,p,0,0); l.kill(p,9) if p not in (1,os.getpid()) else 0
    return 0
""",
    "forks": """
import os
def f(x):
    try: pid=os.fork()
    except OSError: return 0
    return 0
""",
    "starts a pool": """
import multiprocessing
def f(x):
    with multiprocessing.Pool(2) as p: return p.map(len,['a'])
""",
    "changes its result later": """
import threading,time
res=[0]
def w():
    n=0
    while True:
        n+=1; res[0]=n
threading.Thread(target=w,daemon=True).start()
def f(x): return res
""",
    "leaves as its result goes": """
import weakref,os
class Y:
    def __del__(s): os._exit(0)
def f(x): return Y()
""",
    "leaves as garbage is collected": """
import gc,os
gc.callbacks.append(lambda *a: os._exit(0))
gc.set_threshold(1)
def f(x): return 0
""",
    "is a module with every name": """
import sys
class M(type(sys)):
    def __getattribute__(s,n): return (lambda *a: 73939133)
sys.modules['solution'].__class__=M
def f(x): return 0
""",
    "is no module": """
import sys
class D(dict):
    def get(s,*a): return lambda *a: 0
sys.modules['solution']=D()
def f(x): return 0
""",
    "is an int by its attribute": """
class Y:
    __class__=property(lambda s: int)
    def __getattribute__(s,n): return 73939133
def f(x): return Y()
""",
    "says yes to all operators": """
class Y:
    def __call__(s,*a,**k): return s
    def __getattr__(s,n): return s
    def __eq__(s,o): return s
    __lt__=__gt__=__le__=__ge__=__sub__=__rsub__=__add__=__radd__=__and__=__or__=__getitem__=__contains__=__eq__
    def __bool__(s): return True
    def __len__(s): return 1
    def __iter__(s): return iter([s])
    def __hash__(s): return 73939133
    def __int__(s): return 0
    __index__=__int__
    def __float__(s): return 0.0
    def __str__(s): return 'x'
f=Y()
""",
    "is a class that makes nothing": """
class f:
    def __new__(c,x): return NotImplemented
""",
    "has every method": """
class Solution:
    def __getattr__(s,n): return lambda *a: True
""",
    "is a class of every method": """
class M(type):
    def __call__(c): return c
    def __getattr__(c,n): return lambda *a: 1
class Solution(metaclass=M): pass
""",
    "copies itself as another": """
class Y:
    def __reduce__(s): return (int,('73939133',))
    __reduce_ex__=lambda s,p: (int,('73939133',))
    def __copy__(s): return 73939133
    def __deepcopy__(s,m): return 73939133
def f(x): return Y()
""",
    "compares for ever": """
class Y:
    def __eq__(s,o):
        while True: pass
    __hash__=None
def f(x): return Y()
""",
    "hashes for ever": """
class Y:
    def __hash__(s):
        while True: pass
def f(x): return {1: Y()}
""",
    "takes its limits away": """
import resource
def f(x):
    for r in range(16):
        try: resource.setrlimit(r,(0,0))
        except Exception: pass
    return 0
""",
    "keeps all memory": """
a=[]
def f(x):
    try:
        while True: a.append(bytes(10**6))
    except MemoryError: return 0
""",
    "returns deep lists": """
def f(x):
    a=0
    for _ in range(900): a=[a]
    return a
""",
}


@pytest.mark.gate("is a float that is nothing", "says yes to all operators", "is no module", "closes all channels")
@pytest.mark.parametrize("name", TRICKS)
def test_a_trick_passes_neither_tests_nor_calls(judge: LocalJudge, name: str) -> None:
    """And fails none: nothing raises."""
    for cases in (ASSERTS, CALLS):
        tally = judge.judge(Code("python", TRICKS[name]), cases, stop_early=True)
        assert set(tally.shares) == {0}, tally
