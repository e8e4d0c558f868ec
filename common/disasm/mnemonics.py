"""Mnemonics of x86-64, grouped by how the instructions use their operands, for effects.py."""

from __future__ import annotations

import re


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


IGNORED = _names(
    """
    clc cld cmc emms endbr32 endbr64 fnop fwait lfence mfence nop pause serialize sfence stc std vzeroall vzeroupper wait xend xtest
    """
)
"""Instructions whose effects effects.py ignores, except that vzeroupper and vzeroall clear
registers."""

STOPS = _names("hlt ud0 ud1 ud2")
"""Instructions that end the execution."""

CHANGED = _names(
    """
    adc adcx add adox and blsi blsmsk blsr bsf bsr bswap bt btc btr bts bzhi clflush clflushopt clwb cmp cmpxchg crc32 dec imul inc
    incsspd incsspq ldmxcsr lzcnt movnti mulx neg not or pdep pext prefetch prefetchnta prefetcht0 prefetcht1 prefetcht2 prefetchw
    prefetchwt1 push rcl rcr rdsspd rdsspq rol ror sal sar sbb shl shld shr shrd stmxcsr sub test tzcnt vldmxcsr vstmxcsr wrfsbase
    wrgsbase xadd xchg xor
    """
)
"""Instructions that read, and may write, the first operand, and read all other operands."""

SET = _names(
    """
    andn bextr cvtsd2si cvtss2si cvttsd2si cvttss2si extractps kmovb kmovd kmovq kmovw lea mov movabs movbe movd movmskpd movmskps
    movq movsx movsxd movzx pextrb pextrd pextrq pextrw pmovmskb pop popcnt rdfsbase rdgsbase rdpid rdrand rdseed rorx sarx shlx shrx
    vcvtsd2si vcvtss2si vcvttsd2si vcvttss2si vextractps vmovmskpd vmovmskps vpextrb vpextrd vpextrq vpextrw vpmovmskb
    """
)
"""Instructions that overwrite the first operand as a whole if it is a register, and read all other
operands."""

SET_VECTOR = _names(
    """
    cvtdq2pd cvtdq2ps cvtpd2dq cvtpd2ps cvtps2dq cvtps2pd cvttpd2dq cvttps2dq lddqu movapd movaps movd movddup movdqa movdqu movntdqa
    movq movshdup movsldup movupd movups pabsb pabsd pabsw pshufd pshufhw pshuflw rcpps roundpd roundps rsqrtps sqrtpd sqrtps
    """
)
"""SSE: instructions that overwrite all 128 bits of the first operand. With the prefix v (VEX) they
overwrite all of it, and clear the bits above."""

_SET_VEX_MORE = _names(
    """
    vaddpd vaddps vaddsd vaddss vandpd vandps vbroadcastf128 vbroadcasti128 vbroadcastsd vbroadcastss vdivpd vdivps vdivsd vdivss
    vextractf128 vextracti128 vextracti32x4 vextracti64x4 vinsertf128 vinserti128 vmovdqa32 vmovdqa64 vmovdqu16 vmovdqu32 vmovdqu64
    vmovdqu8 vmovhpd vmovhps vmovlpd vmovlps vmovsd vmovss vmulpd vmulps vmulsd vmulss vorpd vorps vpaddb vpaddd vpaddq vpaddw
    vpalignr vpand vpandd vpandn vpandnd vpandnq vpandq vpbroadcastb vpbroadcastd vpbroadcastq vpbroadcastw vpcmpeqb vpcmpeqd vpcmpeqq
    vpcmpeqw vpcmpgtb vpcmpgtd vpcmpgtw vperm2f128 vperm2i128 vpermq vpinsrb vpinsrd vpinsrq vpinsrw vpmaxub vpmaxud vpminub vpminud
    vpor vpord vporq vpshufb vpslld vpslldq vpsllq vpsllw vpsrld vpsrldq vpsrlq vpsrlw vpsubb vpsubd vpsubq vpsubw vpunpckhbw
    vpunpckhdq vpunpckhqdq vpunpckhwd vpunpcklbw vpunpckldq vpunpcklqdq vpunpcklwd vpxor vpxord vpxorq vsubpd vsubps vsubsd vsubss
    vxorpd vxorps
    """
)
"""VEX- or EVEX-coded instructions that overwrite the first operand, unless a mask preserves part of
it."""

SET_VEX = _SET_VEX_MORE | frozenset(f"v{name}" for name in SET_VECTOR)

CHANGES_MORE = _names("cmpxchg imul mulx xadd xchg")
"""Instructions of CHANGED, and imul, that may write general registers beyond their first
operand."""

ZEROING = _names(
    """
    pcmpeqb pcmpeqd pcmpeqq pcmpeqw psubb psubd psubq psubw pxor sub vpsubb vpsubd vpsubq vpsubw vpxor vpxord vpxorq vxorpd vxorps xor
    xorpd xorps
    """
)
"""Instructions whose result does not depend on the sources if both are the same register."""

STORES = re.compile(r"v?mov(?!s[bwq]$)\w*|set\w+|fn?st\w*|v?stmxcsr|v?extract\w+|v?pextr\w")
"""Instructions that write their first operand without reading it, if it is in memory."""
