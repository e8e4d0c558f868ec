/* Instructions in addition to libc's: some that findleaks treats as overwriting a whole register on AArch64, and some that keep a part of it. */
    .arch armv8.5-a+crypto+sha2+aes
    .text
    adc x0, x1, x2; adcs w0, w1, w2; ands x0, x1, #7; asr x0, x1, #3; bic x0, x1, x2; bics x0, x1, x2; cinc x0, x1, eq; cinv x0, x1, ne
    clz x0, x1; cls w0, w1; cneg x0, x1, lt; crc32b w0, w1, w2; crc32cx w0, w1, x2; crc32h w0, w1, w2; crc32cw w0, w1, w2
    cset x0, eq; csetm w0, ne; csel x0, x1, x2, gt; csinc x0, x1, x2, gt; csinv x0, x1, x2, gt; csneg x0, x1, x2, gt; eon x0, x1, x2
    extr x0, x1, x2, #7; madd x0, x1, x2, x3; mneg x0, x1, x2; movn x0, #7; movz x0, #7, lsl #16; movk x0, #7, lsl #32; mrs x0, fpcr
    msub w0, w1, w2, w3; mvn x0, x1; ngc x0, x1; ngcs x0, x1; orn x0, x1, x2; rbit x0, x1; rev x0, x1; rev16 x0, x1; rev32 x0, x1
    ror x0, x1, x2; sbc x0, x1, x2; sbcs x0, x1, x2; sbfiz x0, x1, #3, #4; sbfx x0, x1, #3, #4; bfi x0, x1, #3, #4; bfxil x0, x1, #3, #4
    bfc x0, #3, #4; sdiv x0, x1, x2; udiv w0, w1, w2; smaddl x0, w1, w2, x3; smnegl x0, w1, w2; smsubl x0, w1, w2, x3; smulh x0, x1, x2
    smull x0, w1, w2; umnegl x0, w1, w2; umsubl x0, w1, w2, x3; umulh x0, x1, x2; umull x0, w1, w2; sxtb x0, w1; sxth w0, w1; uxtb w0, w1
    ccmp x0, x1, #3, eq; ccmn x0, #3, #3, eq; cmn x0, x1; tst x0, x1; smov x0, v1.h[3]; umov w0, v1.b[5]; mov x0, v1.d[1]
    ldr x0, [x1, x2]; ldr w0, [x1, w2, uxtw #2]; ldrb w0, [x1], #1; ldrsb x0, [x1, #1]!; ldrsh w0, [x1]; ldrsw x0, [x1, #4]; ldur x0, [x1, #-8]
    ldtr x0, [x1]; ldtrb w0, [x1]; ldar x0, [x1]; ldapr x0, [x1]; ldapur x0, [x1, #8]; ldlar x0, [x1]; ldxr x0, [x1]; ldaxrb w0, [x1]
    ldp x0, x2, [x1, #16]; ldp w0, w2, [x1], #16; ldpsw x0, x2, [x1]; ldnp x0, x2, [x1]; ldxp x0, x2, [x1]; ldaxp w0, w2, [x1]
    stxr w0, x2, [x1]; stlxr w0, w2, [x1]; stxp w0, x2, x3, [x1]; stlxrb w0, w2, [x1]; clrex; stp x0, x2, [x1, #-16]!; stlr x0, [x1]
    swp x0, x2, [x1]; swpal w0, w2, [x1]; swpb w0, w2, [x1]; ldadd x0, x2, [x1]; ldaddal w0, w2, [x1]; ldclr x0, x2, [x1]; ldeora x0, x2, [x1]
    ldsetl x0, x2, [x1]; ldsmax x0, x2, [x1]; ldumin w0, w2, [x1]; ldumaxh w0, w2, [x1]; stadd x0, [x1]; cas x0, x2, [x1]; casb w0, w2, [x1]
    casp x4, x5, x2, x3, [x1]; caspal w4, w5, w2, w3, [x1]; pacia x0, x2; autib x0, x2; xpaci x0; pacga x0, x2, x3; paciasp; pacia1716; hint #40
    ldr b0, [x1]; ldr h0, [x1]; ldr s0, [x1]; ldr d0, [x1, x2]; ldr q0, [x1], #16; ldp s0, s2, [x1]; ldp q0, q2, [x1, #32]!; ldnp d0, d2, [x1]
    stp q0, q2, [x1]; str q0, [x1, #16]!; ld1 {v0.8b}, [x1]; ld1 {v0.16b-v3.16b}, [x1], #64; ld1 {v0.s}[2], [x1]; ld1r {v0.8b}, [x1], #1
    ld2 {v0.4h, v1.4h}, [x1]; ld2 {v0.h, v1.h}[3], [x1]; ld3 {v0.4s-v2.4s}, [x1], #48; ld3r {v0.2d-v2.2d}, [x1]; ld4 {v0.8b-v3.8b}, [x1]
    ld4 {v0.d-v3.d}[1], [x1]; ld4r {v0.1d-v3.1d}, [x1]; st1 {v0.8b}, [x1]; st2 {v0.4h, v1.4h}, [x1]; st4 {v0.s-v3.s}[1], [x1]
    abs v0.4s, v1.4s; abs d0, d1; addhn v0.8b, v1.8h, v2.8h; addhn2 v0.16b, v1.8h, v2.8h; addp v0.4s, v1.4s, v2.4s; addp d0, v1.2d
    addv h0, v1.8h; cmeq v0.2d, v1.2d, #0; cmge d0, d1, d2; cmgt v0.8b, v1.8b, v2.8b; cmhi v0.8b, v1.8b, v2.8b; cmhs v0.8b, v1.8b, v2.8b
    cmle v0.8b, v1.8b, #0; cmlt v0.4s, v1.4s, #0; cmtst v0.8b, v1.8b, v2.8b; cnt v0.8b, v1.8b; dup v0.4h, w1; dup b0, v1.b[3]
    dup v0.8h, v1.h[7]; mov v0.h[3], w1; mov v0.s[1], v1.s[3]; ext v0.8b, v1.8b, v2.8b, #3; fabd v0.2s, v1.2s, v2.2s; fabs v0.2d, v1.2d
    fadd v0.2d, v1.2d, v2.2d; faddp s0, v1.2s; faddp v0.4s, v1.4s, v2.4s; fcmeq v0.2d, v1.2d, #0.0; fcmge s0, s1, s2; fcmgt d0, d1, #0.0
    fcmle v0.2s, v1.2s, #0.0; fcmlt v0.2s, v1.2s, #0.0; fcsel d0, d1, d2, eq; fcvt h0, d1; fcvtl v0.2d, v1.2s; fcvtl2 v0.2d, v1.4s
    fcvtn v0.2s, v1.2d; fcvtn2 v0.4s, v1.2d; fcvtxn v0.2s, v1.2d; fcvtxn2 v0.4s, v1.2d; fcvtas w0, s1; fcvtau v0.2d, v1.2d; fcvtms d0, d1
    fcvtnu x0, d1; fcvtps x0, s1; fcvtzs v0.4s, v1.4s, #3; fcvtzu w0, d1; fdiv v0.4s, v1.4s, v2.4s; fmadd s0, s1, s2, s3
    fmax v0.4s, v1.4s, v2.4s; fmaxnm d0, d1, d2; fmaxnmp d0, v1.2d; fmaxnmv s0, v1.4s; fmaxp v0.2d, v1.2d, v2.2d; fmaxv s0, v1.4s
    fmin v0.4s, v1.4s, v2.4s; fminnm d0, d1, d2; fminnmp d0, v1.2d; fminnmv s0, v1.4s; fminp s0, v1.2s; fminv s0, v1.4s
    fmov s0, w1; fmov d0, x1; fmov v0.d[1], x1; fmov x0, v1.d[1]; fmov x0, d1; fmov d0, #2.0; fmov v0.2d, #3.0; fmov v0.2s, #3.0
    fmla v0.4s, v1.4s, v2.4s; fmla v0.2d, v1.2d, v2.d[1]; fmls d0, d1, v2.d[0]; fmsub d0, d1, d2, d3; fmul v0.2d, v1.2d, v2.d[1]
    fmulx d0, d1, d2; fneg v0.2d, v1.2d; fnmadd d0, d1, d2, d3; fnmsub s0, s1, s2, s3; fnmul d0, d1, d2; frecpe v0.2d, v1.2d
    frecps d0, d1, d2; frecpx d0, d1; frsqrte s0, s1; frsqrts v0.2s, v1.2s, v2.2s; frinta v0.2d, v1.2d; frinti s0, s1; frintx d0, d1
    fsqrt v0.2d, v1.2d; fsub d0, d1, d2; mla v0.4s, v1.4s, v2.4s; mls v0.4s, v1.4s, v2.s[1]; movi v0.4s, #3, lsl #8; movi d0, #0xff00
    mvni v0.8h, #3; orr v0.4s, #3; bic v0.8h, #3; orr v0.8b, v1.8b, v2.8b; bic v0.8b, v1.8b, v2.8b; orn v0.8b, v1.8b, v2.8b
    bsl v0.8b, v1.8b, v2.8b; bit v0.8b, v1.8b, v2.8b; bif v0.8b, v1.8b, v2.8b; mul v0.4s, v1.4s, v2.4s; not v0.8b, v1.8b
    pmul v0.8b, v1.8b, v2.8b; pmull v0.8h, v1.8b, v2.8b; pmull2 v0.1q, v1.2d, v2.2d; raddhn v0.8b, v1.8h, v2.8h; rshrn2 v0.16b, v1.8h, #3
    saba v0.8b, v1.8b, v2.8b; sabal v0.8h, v1.8b, v2.8b; sabd v0.8b, v1.8b, v2.8b; sabdl v0.8h, v1.8b, v2.8b; sadalp v0.4h, v1.8b
    saddl v0.8h, v1.8b, v2.8b; saddl2 v0.8h, v1.16b, v2.16b; saddlp v0.4h, v1.8b; saddlv h0, v1.8b; saddw v0.8h, v1.8h, v2.8b
    scvtf v0.2d, v1.2d; scvtf d0, x1; ucvtf s0, w1, #3; shadd v0.8b, v1.8b, v2.8b; shl v0.2d, v1.2d, #3; shll v0.8h, v1.8b, #8
    shrn v0.8b, v1.8h, #3; shrn2 v0.16b, v1.8h, #3; shsub v0.8b, v1.8b, v2.8b; sli v0.2d, v1.2d, #3; sri d0, d1, #3
    smax v0.8b, v1.8b, v2.8b; smaxp v0.8b, v1.8b, v2.8b; smaxv b0, v1.8b; smin v0.8b, v1.8b, v2.8b; sminp v0.8b, v1.8b, v2.8b; sminv b0, v1.8b
    smlal v0.8h, v1.8b, v2.8b; smlsl2 v0.4s, v1.8h, v2.8h; smull v0.8h, v1.8b, v2.8b; smull2 v0.4s, v1.8h, v2.h[1]; sqabs v0.4s, v1.4s
    sqadd d0, d1, d2; sqdmlal s0, h1, h2; sqdmulh v0.4s, v1.4s, v2.4s; sqneg v0.4s, v1.4s; sqrdmlah v0.4s, v1.4s, v2.4s
    sqshl v0.4s, v1.4s, #3; sqshl d0, d1, d2; sqsub d0, d1, d2; sqxtn v0.8b, v1.8h; sqxtn2 v0.16b, v1.8h; sqxtn b0, h1; sqxtun v0.8b, v1.8h
    srhadd v0.8b, v1.8b, v2.8b; srshl v0.8b, v1.8b, v2.8b; srsra v0.2d, v1.2d, #3; sshl v0.8b, v1.8b, v2.8b; sshll v0.8h, v1.8b, #3
    sshll2 v0.8h, v1.16b, #3; sshr v0.2d, v1.2d, #3; ssra d0, d1, #3; ssubl v0.8h, v1.8b, v2.8b; ssubw v0.8h, v1.8h, v2.8b
    subhn v0.8b, v1.8h, v2.8h; suqadd v0.8b, v1.8b; sxtl v0.8h, v1.8b; tbl v0.8b, {v1.16b}, v2.8b; tbx v0.8b, {v1.16b, v2.16b}, v3.8b
    trn1 v0.8b, v1.8b, v2.8b; trn2 v0.2d, v1.2d, v2.2d; uaba v0.8b, v1.8b, v2.8b; uabd v0.8b, v1.8b, v2.8b; uabdl v0.8h, v1.8b, v2.8b
    uadalp v0.4h, v1.8b; uaddl v0.8h, v1.8b, v2.8b; uaddlp v0.4h, v1.8b; uaddlv h0, v1.8b; uaddw2 v0.8h, v1.8h, v2.16b; uhadd v0.8b, v1.8b, v2.8b
    uhsub v0.8b, v1.8b, v2.8b; umax v0.8b, v1.8b, v2.8b; umaxp v0.8b, v1.8b, v2.8b; umaxv b0, v1.8b; umin v0.8b, v1.8b, v2.8b
    umlal v0.8h, v1.8b, v2.8b; umull v0.8h, v1.8b, v2.8b; umull2 v0.8h, v1.16b, v2.16b; uqadd v0.8b, v1.8b, v2.8b; uqsub b0, b1, b2
    uqxtn v0.8b, v1.8h; urhadd v0.8b, v1.8b, v2.8b; urshl d0, d1, d2; ushl d0, d1, d2; ushll v0.2d, v1.2s, #3; ushr d0, d1, #3; usra d0, d1, #3
    usqadd d0, d1; usubl v0.8h, v1.8b, v2.8b; usubw v0.8h, v1.8h, v2.8b; uxtl v0.8h, v1.8b; uzp1 v0.2d, v1.2d, v2.2d; uzp2 v0.8b, v1.8b, v2.8b
    xtn v0.8b, v1.8h; xtn2 v0.16b, v1.8h; zip1 v0.8b, v1.8b, v2.8b; zip2 v0.2d, v1.2d, v2.2d; rev64 v0.8b, v1.8b; rbit v0.8b, v1.8b
    clz v0.8b, v1.8b; cls v0.8b, v1.8b; neg v0.2d, v1.2d; neg d0, d1; sub d0, d1, d2; add v0.8b, v1.8b, v2.8b; eor v0.8b, v1.8b, v2.8b
    and v0.8b, v1.8b, v2.8b; mvn v0.8b, v1.8b; mov v0.8b, v1.8b; aese v0.16b, v1.16b; aesmc v0.16b, v1.16b; sha1c q0, s1, v2.4s; sha1h s0, s1
    sha1su0 v0.4s, v1.4s, v2.4s; sha256h q0, q1, v2.4s; sha256su0 v0.4s, v1.4s; ret
