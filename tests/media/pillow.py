"""Pictures in every form, and what Pillow makes of them: files into the folder that is named, and a list of cases on standard output.

    decode FILE EXPECTED WIDTH HEIGHT
    resize FILE FILTER EXPECTED WIDTH HEIGHT
    tiles FILE TILE LONGEST ONE_VIEW EXPECTED ROWS COLUMNS
    blocks FILE BLOCK LEAST MOST EXPECTED WIDTH HEIGHT
    lfm2 FILE PATCH SHUFFLE ONE_VIEW EXPECTED ROWS COLUMNS WIDTH HEIGHT
    internvl FILE TILE LEAST MOST ONE_VIEW EXPECTED ROWS COLUMNS
    gemma4 FILE BLOCK ROWS EXPECTED WIDTH HEIGHT

EXPECTED has the bytes RGB. The rules of sizes are those of transformers' image_processing_idefics3.py,
image_processing_qwen2_vl.py, image_processing_lfm2_vl.py, image_processing_got_ocr2.py (InternVL) and
image_processing_pil_gemma4.py, written down again; WIDTH 0: the picture is refused.
Exit 77: there is no Pillow."""
import io, math, os, random, struct, sys

try:
    from PIL import Image, ImageOps
except ImportError:
    sys.exit(77)

folder, seed = sys.argv[1], int(sys.argv[2])
formats = sys.argv[3].split(",")  # that this build of tern reads
rng = random.Random(seed)


def path(name):
    return os.path.join(folder, name)


def noise(w, h, bands):
    """Smooth parts, edges and noise: resampling shows in all of them."""
    data = bytearray()
    for y in range(h):
        for x in range(w):
            for b in range(bands):
                v = (x * 3 + y * (2 + b) + b * 40) % 256 if (x // 7 + y // 5) % 3 else rng.randrange(256)
                data.append(v)
    return bytes(data)


def picture(w, h, mode="RGB"):
    return Image.frombytes(mode, (w, h), noise(w, h, len(mode)))


def upright(data):
    im = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if im.mode == "RGB":
        return im
    if im.mode in ("LA", "PA", "RGBA", "P", "La"):
        rgba = im.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, (255, 255, 255)), rgba).convert("RGB")
    if im.mode in ("I", "I;16"):  # Pillow's conversion clips; 8 bits are the high byte
        return im.point(lambda v: v * (1 / 256)).convert("L").convert("RGB")
    return im.convert("RGB")


def emit(name, data, expected=None):
    with open(path(name), "wb") as f:
        f.write(data)
    im = expected or upright(data)
    with open(path(name + ".rgb"), "wb") as f:
        f.write(im.tobytes())
    print("decode", name, name + ".rgb", im.width, im.height)


def saved(im, format, **how):
    out = io.BytesIO()
    im.save(out, format, **how)
    return out.getvalue()


def exif(n):
    return b"Exif\0\0" + b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, n, 0, 0)


SIZES = [(1, 1), (1, 9), (17, 1), (5, 7), (64, 48), (33, 65)]
if "png" in formats:
    for w, h in SIZES:
        for mode in ("RGB", "RGBA", "L", "LA"):
            emit(f"{mode}-{w}x{h}.png", saved(picture(w, h, mode), "PNG"))
    emit("palette.png", saved(picture(40, 30).quantize(16), "PNG"))
    p = picture(40, 30).quantize(8)
    emit("palette-alpha.png", saved(p, "PNG", transparency=bytes([0, 255, 128, 7, 200, 255, 255, 90])))
    emit("bits.png", saved(picture(37, 11, "L").convert("1"), "PNG"))
    emit("grey16.png", saved(Image.frombytes("I;16", (31, 23), noise(31, 23, 2)), "PNG"))
    for n in range(1, 9):
        emit(f"turned-{n}.png", saved(picture(13, 6), "PNG", exif=exif(n)))
if "jpeg" in formats:
    for w, h in SIZES:
        emit(f"{w}x{h}.jpg", saved(picture(w, h), "JPEG", quality=80))
        emit(f"grey-{w}x{h}.jpg", saved(picture(w, h, "L"), "JPEG"))
        emit(f"cmyk-{w}x{h}.jpg", saved(picture(w, h, "CMYK"), "JPEG", quality=90))
    emit("444.jpg", saved(picture(61, 47), "JPEG", quality=95, subsampling=0))
    emit("progressive.jpg", saved(picture(61, 47), "JPEG", progressive=True))
    for n in range(1, 9):
        emit(f"turned-{n}.jpg", saved(picture(19, 8), "JPEG", exif=exif(n)))
if "webp" in formats:
    for w, h in SIZES:
        emit(f"{w}x{h}.webp", saved(picture(w, h), "WEBP", quality=70))
        emit(f"alpha-{w}x{h}.webp", saved(picture(w, h, "RGBA"), "WEBP", lossless=True))
    for n in (3, 6):
        emit(f"turned-{n}.webp", saved(picture(19, 8), "WEBP", lossless=True, exif=exif(n)))


def raw(name, im):
    with open(path(name), "wb") as f:
        f.write(struct.pack("<II", im.width, im.height) + im.tobytes())


FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}
for i in range(60):
    w, h, ow, oh = (rng.choice((1, 2, 3, 7, 31, 64, 100, 257)) for _ in range(4))
    if i % 7 == 0:
        ow = w
    if i % 5 == 0:
        oh = h
    im = picture(w, h)
    raw(f"from-{i}", im)
    for name, filter in FILTERS.items():
        to = im.resize((ow, oh), filter)
        with open(path(f"to-{i}-{name}"), "wb") as f:
            f.write(to.tobytes())
        print("resize", f"from-{i}", name, f"to-{i}-{name}", ow, oh)


def to_longest(w, h, longest):
    aspect = w / h
    if w >= h:
        w, h = longest, int(longest / aspect)
        h += h % 2
    else:
        w, h = int(longest * aspect), longest
        w += w % 2
    w, h = max(w, 1), max(h, 1)
    aspect = w / h
    if w >= h and w > 4096:
        w, h = 4096, int(4096 / aspect)
    elif h > w and h > 4096:
        w, h = int(4096 * aspect), 4096
    return max(w, 1), max(h, 1)


def tiles(im, tile, longest, one_view):
    im = im.resize(to_longest(*im.size, longest), Image.LANCZOS)
    if one_view:
        return [im.resize((tile, tile), Image.LANCZOS)], 0, 0
    w, h = im.size
    aspect = w / h
    if w >= h:
        w = math.ceil(w / tile) * tile
        h = math.ceil(int(w / aspect) / tile) * tile
    else:
        h = math.ceil(h / tile) * tile
        w = math.ceil(int(h * aspect) / tile) * tile
    im = im.resize((w, h), Image.LANCZOS)
    if w <= tile and h <= tile:
        return [im], 0, 0
    rows, columns = math.ceil(h / tile), math.ceil(w / tile)
    out = [im.crop((c * tile, r * tile, (c + 1) * tile, (r + 1) * tile)) for r in range(rows) for c in range(columns)]
    if im.size != (tile, tile):
        im = im.resize((tile, tile), Image.LANCZOS)
    return out + [im], rows, columns


for i in range(40):
    w, h = (rng.choice((1, 2, 5, 16, 33, 47, 80, 161)) for _ in range(2))
    tile, longest = rng.choice(((16, 64), (24, 96), (32, 32), (20, 50)))
    im = picture(w, h)
    raw(f"whole-{i}", im)
    for one_view in (0, 1):
        views, rows, columns = tiles(im, tile, longest, one_view)
        with open(path(f"views-{i}-{one_view}"), "wb") as f:
            f.write(b"".join(v.tobytes() for v in views))
        print("tiles", f"whole-{i}", tile, longest, one_view, f"views-{i}-{one_view}", rows, columns)


def blocks(w, h, of, least, most):
    """Whole blocks of a size within the limits, as near to the picture's as can be."""
    if max(w, h) / min(w, h) > 200:
        return 0, 0
    ow, oh = round(w / of) * of, round(h / of) * of
    if ow * oh > most:
        by = math.sqrt(h * w / most)
        return max(of, math.floor(w / by / of) * of), max(of, math.floor(h / by / of) * of)
    if ow * oh < least:
        by = math.sqrt(least / (h * w))
        return math.ceil(w * by / of) * of, math.ceil(h * by / of) * of
    return ow, oh


for i in range(60):
    w, h = (rng.choice((1, 2, 5, 16, 24, 33, 40, 47, 80, 161, 230)) for _ in range(2))
    of = rng.choice((16, 28, 32))
    least, most = rng.choice(((256, 4096), (3136, 20000), (65536, 16777216), (1024, 1024)))
    im = picture(w, h)
    raw(f"any-{i}", im)
    ow, oh = blocks(w, h, of, least, most)
    if ow:
        with open(path(f"blocks-{i}"), "wb") as f:
            f.write(im.resize((ow, oh), Image.BICUBIC).tobytes())
    print("blocks", f"any-{i}", of, least, most, f"blocks-{i}", ow, oh)


def nearest_grid(w, h, side, least, most):
    """The rows and columns of least to most tiles whose aspect is the nearest, of several the larger while the picture fills half."""
    n = range(1, most + 1)
    best, columns, rows = math.inf, 1, 1
    for c, r in sorted(((c, r) for c in n for r in n if least <= c * r <= most), key=lambda g: g[0] * g[1]):
        off = abs(w / h - c / r)
        if off < best or off == best and w * h > 0.5 * side * side * c * r:
            columns, rows = c, r
        best = min(best, off)
    return rows, columns


def lfm2(im, patch, shuffle, one_view):
    """Tiles of a large picture and the view of the whole: the number of the grid's rows and columns, and the pictures."""
    w, h = im.size
    of = patch * shuffle
    side, least, most = 16 * of, 64 * of * of, 256 * of * of
    ow, oh = max(of, round(w / of) * of), max(of, round(h / of) * of)
    if ow * oh > most:
        by = math.sqrt(h * w / most)
        ow, oh = max(of, math.floor(w / by / of) * of), max(of, math.floor(h / by / of) * of)
    elif ow * oh < least:
        by = math.sqrt(least / (h * w))
        ow, oh = math.ceil(w * by / of) * of, math.ceil(h * by / of) * of
    if ow * oh > most:
        return 0, 0, []  # more patches than the processor has places for
    whole = im.resize((ow, oh), Image.BILINEAR)
    if one_view or max(patch, round(h / of) * of) * max(patch, round(w / of) * of) <= 2 * most:
        return 0, 0, [whole]
    rows, columns = nearest_grid(w, h, side, 2, 10)
    big = im.resize((columns * side, rows * side), Image.BILINEAR)
    tiles = [big.crop((c * side, r * side, (c + 1) * side, (r + 1) * side)) for r in range(rows) for c in range(columns)]
    return rows, columns, tiles + [whole]


SIDES = (1, 2, 5, 16, 24, 33, 47, 61, 80, 97, 130, 161, 230, 333)
for i in range(90):
    w, h = rng.choice(SIDES), rng.choice(SIDES)
    patch, shuffle = rng.choice(((4, 1), (1, 2), (2, 1), (1, 1), (3, 2), (1, 3)))
    if i % 10 == 0:  # where a picture begins to be cut: twice the pixels of a tile
        w, h = 16 * patch * shuffle * 2, 16 * patch * shuffle + i // 10 - 4
    im = picture(w, h)
    raw(f"lfm2-{i}", im)
    for one_view in (0, 1):
        rows, columns, views = lfm2(im, patch, shuffle, one_view)
        with open(path(f"lfm2-views-{i}-{one_view}"), "wb") as f:
            f.write(b"".join(v.tobytes() for v in views))
        ow, oh = views[-1].size if views else (0, 0)
        print("lfm2", f"lfm2-{i}", patch, shuffle, one_view, f"lfm2-views-{i}-{one_view}", rows, columns, ow, oh)


def internvl(im, side, least, most, one_view):
    rows, columns = (1, 1) if one_view else nearest_grid(*im.size, side, least, most)
    whole = im.resize((side, side), Image.BICUBIC)
    if rows * columns == 1:
        return 0, 0, [whole]
    big = im.resize((columns * side, rows * side), Image.BICUBIC)
    tiles = [big.crop((c * side, r * side, (c + 1) * side, (r + 1) * side)) for r in range(rows) for c in range(columns)]
    return rows, columns, tiles + [whole]


for i in range(60):
    w, h = rng.choice(SIDES), rng.choice(SIDES)
    side = rng.choice((8, 21, 28, 56))
    least, most = rng.choice(((1, 12), (1, 12), (1, 6), (2, 3), (1, 1)))
    if i % 10 == 0:  # as far from one grid as from another of as many tiles
        w, h, least, most = 40, 32, 2, 3
        side = 8 + 8 * (i // 10)
    im = picture(w, h)
    raw(f"internvl-{i}", im)
    for one_view in (0, 1):
        rows, columns, views = internvl(im, side, least, most, one_view)
        with open(path(f"internvl-views-{i}-{one_view}"), "wb") as f:
            f.write(b"".join(v.tobytes() for v in views))
        print("internvl", f"internvl-{i}", side, least, most, one_view, f"internvl-views-{i}-{one_view}", rows, columns)


def gemma4(w, h, of, rows):
    """As many whole blocks as the aspect and the rows allow; a side that has none becomes one block."""
    by = math.sqrt(rows * of * of / (w * h))
    ow, oh = math.floor(by * w / of) * of, math.floor(by * h / of) * of
    if oh == 0:
        return min(math.floor(w / h) * of, rows * of), of
    if ow == 0:
        return of, min(math.floor(h / w) * of, rows * of)
    return ow, oh


for i in range(60):
    w, h = rng.choice(SIDES), rng.choice(SIDES)
    of, rows = rng.choice((4, 6, 12)), rng.choice((70, 140, 280, 280))
    if i % 12 == 0:
        w, h = (1, 333) if i % 24 else (333, 1)
    im = picture(w, h)
    raw(f"gemma4-{i}", im)
    ow, oh = gemma4(w, h, of, rows)
    with open(path(f"gemma4-view-{i}"), "wb") as f:
        f.write(im.resize((ow, oh), Image.BICUBIC).tobytes())
    print("gemma4", f"gemma4-{i}", of, rows, f"gemma4-view-{i}", ow, oh)


def minicpm(im, side, patch, one_view):
    """The whole, and slices of the grid: the number of its rows and columns, and the pictures."""
    def whole_patches(length, by):
        return max(round(length / by) * by, by)

    def best(w, h, grow):
        if grow or w * h > side * side:
            aspect = w / h
            h = int(side / math.sqrt(aspect))
            w = int(h * aspect)
        return whole_patches(w, patch), whole_patches(h, patch)

    w, h = im.size
    n = min(math.ceil(w * h / (side * side)), 9)
    if one_view or n <= 1:
        return 0, 0, [im.resize(best(w, h, True), Image.BICUBIC)]
    grids = [(c, k // c) for k in (n - 1, n, n + 1) if 1 < k <= 9 for c in range(1, k + 1) if k % c == 0]
    columns, rows = min(grids, key=lambda g: abs(math.log(w / h) - math.log(g[0] / g[1])))
    sw, sh = best(whole_patches(w, columns) / columns, whole_patches(h, rows) / rows, True)
    big = im.resize((sw * columns, sh * rows), Image.BICUBIC)
    slices = [big.crop((c * sw, r * sh, (c + 1) * sw, (r + 1) * sh)) for r in range(rows) for c in range(columns)]
    return rows, columns, [im.resize(best(w, h, False), Image.BICUBIC)] + slices


for i in range(80):
    w, h = rng.choice(SIDES), rng.choice(SIDES)
    side, patch = rng.choice(((28, 14), (56, 14), (40, 4), (64, 16), (33, 3)))
    if i % 10 == 0:  # around the areas where there are more slices
        w, h = side * (1 + i // 20), side + i // 10 % 2
    im = picture(w, h)
    raw(f"minicpm-{i}", im)
    for one_view in (0, 1):
        rows, columns, views = minicpm(im, side, patch, one_view)
        with open(path(f"minicpm-views-{i}-{one_view}"), "wb") as f:
            f.write(b"".join(v.tobytes() for v in views))
        print("minicpm", f"minicpm-{i}", side, patch, one_view, f"minicpm-views-{i}-{one_view}", rows, columns, *views[0].size)
