"""Word lists for the address format: plausible, made up for this library, about nobody in particular."""

from __future__ import annotations


def _entries(text: str) -> tuple[str, ...]:
    """Split at commas; a list literal of the same words would be a page of quotes."""
    return tuple(" ".join(entry.split()) for entry in text.split(","))


TITLES = ("Mr", "Mrs", "Ms", "Mx", "Miss", "Dr", "Prof", "Rev")

FIRST_NAMES = _entries(
    """
    Aaron, Adele, Agnes, Alvin, Amira, Anita, Arlo, Astrid, Beatrix, Boris, Bruno, Callum, Carla,
    Cedric, Chloe, Clara, Colin, Dalia, Daphne, Desmond, Dora, Edgar, Elias, Elsa, Emeka, Esther, Farah,
    Felix, Fiona, Gideon, Greta, Hassan, Hazel, Hugo, Imogen, Ines, Ivan, Jasper, Joanna, Kenji,
    Lavinia, Leon, Lucia, Magnus, Maya, Milo, Nadia, Nora, Oscar, Otto, Paloma, Petra, Quentin, Rafael,
    Rosa, Rupert, Selma, Stefan, Tamsin, Theo, Ursula, Victor, Wanda, Yusuf
    """
)

LAST_NAMES = _entries(
    """
    Abbot, Alderton, Amsel, Arkwright, Barlow, Beckett, Birch, Bramwell, Calloway, Carver, Castell,
    Crowley, Dalby, Darrow, Devlin, Drake, Eastman, Ellery, Fairley, Falk, Fenwick, Forster, Garrick,
    Gilmore, Granger, Hadley, Halloran, Harker, Hollis, Ingram, Jardine, Keane, Kestrel, Lambert,
    Larkin, Lindqvist, Lockhart, Marlow, Mercer, Moreau, Nakano, Nettle, Novak, Okafor, Osborne, Paget,
    Pereira, Quill, Radley, Ramsey, Rossi, Sandoval, Selby, Sorrel, Tanaka, Thorne, Underhill, Vance,
    Varga, Wainwright, Weller, Winslow, Yardley, Zeller
    """
)

STREETS = _entries(
    """
    Acorn Street, Beacon Street, Bridge Street, Canal Street, Chapel Street, Copper Street, Elm Street,
    Foundry Street, Granite Street, Harbor Street, Juniper Street, Kiln Street, Linden Street, Market
    Street, Amber Avenue, Bellflower Avenue, Cedar Avenue, Falcon Avenue, Garden Avenue, Heron Avenue,
    Jefferson Avenue, Laurel Avenue, Maple Avenue, Orchard Avenue, Poplar Avenue, Sycamore Avenue, Bluff
    Road, Coach Road, Ferry Road, Hilltop Road, Ironwood Road, Lakeside Road, Millstone Road, Old Mill
    Road, Quarry Road, Ridge Road, Saddle Road, Wagon Road, Bramble Lane, Clover Lane, Dove Lane, Fern
    Lane, Goose Lane, Hawthorn Lane, Lantern Lane, Meadow Lane, Primrose Lane, Thistle Lane, Willow
    Lane, Briar Court, Cobble Court, Fox Court, Ivy Court, Magnolia Court, Pebble Court, Sparrow Court,
    Wren Court, Aspen Drive, Canyon Drive, Horizon Drive, Larch Drive, Mariner Drive, Sunset Drive,
    Valley Drive
    """
)

CITIES = _entries(
    """
    Alderbrook, Amberfield, Ashgrove, Bayhaven, Bellweather, Birchmont, Blue Harbor, Briarwood Falls,
    Brookmere, Cedar Bluff, Clearwell, Cobbleton, Copper Creek, Cranfield, Crestview, Dunmore Point,
    Eagle Rapids, Eastbrook, Elkridge, Fairhollow, Fallowdale, Fernwood, Fort Larkin, Foxborough,
    Glenhaven, Goldport, Granite Pass, Greenmarsh, Harrowgate, Hazelton, Highmoor, Hollow Springs,
    Ironbridge, Juniper Flats, Kettleford, Kingsmere, Lakemont, Larkspur, Lindenville, Lower Ashby,
    Maplecrest, Marlow Bay, Millbrook, Mistral, New Callum, North Ferris, Oakhurst, Old Quarry,
    Pinecrest, Port Ellery, Quail Hollow, Ravenna Hills, Redstone, Riverbend, Saint Odell, Silver Lake,
    Stonebridge, Summerfield, Thornbury, Upper Selby, Vernal, Westmarch, Willowdale, Wolf Creek
    """
)

STATES = _entries(
    """
    AL, AK, AZ, AR, CA, CO, CT, DE, FL, GA, HI, ID, IL, IN, IA, KS, KY, LA, ME, MD, MA, MI, MN, MS, MO,
    MT, NE, NV, NH, NJ, NM, NY, NC, ND, OH, OK, OR, PA, RI, SC, SD, TN, TX, UT, VT, VA, WA, WV, WI, WY
    """
)
