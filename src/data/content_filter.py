"""Which sentence pairs a classroom can do without: a list of words, English and target language.

The sentences of Tatoeba are written by anyone about anything. A pair is left out if either side
holds one of these words, whatever it means there: "killed in an accident" goes as well. The list
is about sexual acts, killing, torture, self-harm and abuse; it is no judgement on a topic, it is
not complete, and it says nothing of who somebody is or believes. ``*`` stands for any ending.
"""

import re

_WORDS = {
    "eng": """
        sex sexy sexual* porn* erotic* naked* nude* nudity penis* vagina* breasts boobs orgasm*
        masturbat* condom* prostitut* brothel* whore* slut* bitch* fuck* shit shitty asshole*
        bastard* rape raped rapes raping rapist* incest* pedophil* grope* undress* virgin
        virginity abortion* suicid* kill kills killed killer* killing* murder* strangl* stab
        stabbed stabbing* tortur* behead* massacr* assassin* slaughter* lynch* hanged corpse*
        terroris*""",
    "fra": """
        sexe* sexuel* sexy porno* érotique* pénis vagin* seins orgasme* masturb* préservatif*
        prostitu* bordel putain* pute* salope* connard* enculé* baise merde* viol violeur*
        violée* inceste* vierge virginité avortement* suicid* tuer tue tues tué tuée tués tuées
        tua tuent tuait tueur* meurtr* étrangl* poignard* égorg* tortur* décapit* massacr*
        assassin* lynch* cadavre* terroris*""",
    "deu": """
        sex sexy sexuell* porno* erotisch* nackt* penis* vagina* brüste* busen orgasm* masturb*
        kondom* prostitu* bordell* hure* nutte* schlampe* fick* scheiß* scheiss* arschloch*
        vergewaltig* inzest* jungfrau* abtreibung* selbstmord* suizid* töte tötet töten tötete*
        getötet* umbring* umgebracht* mord morde mörder* ermord* erwürg* erdrossel* erstech*
        erstochen* folter* gefoltert* enthaupt* massak* attentat* lynch* erhängt* leiche leichen
        terroris*""",
    "spa": """
        sexo* sexual* sexy porno* erótic* desnud* pene penes vagina* senos orgasmo* masturb*
        condón condones preservativo* prostitu* burdel* puta putas puto putos mierda* joder coño*
        follar* violar violó violad* violador* incesto* virgen virginidad aborto* suicid* mata
        matar* mató mataron matado matando maté asesin* estrangul* apuñal* degoll* tortur*
        decapit* masacr* linch* ahorcado* cadáver* terroris*""",
}


_WORD = re.compile(r"\w+")


def _split_list(words: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Set whole words and beginnings of words apart, without case."""
    entries = words.casefold().split()
    whole = frozenset(entry for entry in entries if not entry.endswith("*"))
    return whole, tuple(
        entry.removesuffix("*") for entry in entries if entry.endswith("*")
    )


_LISTS = {language: _split_list(words) for language, words in _WORDS.items()}


def is_suitable(sentence: str, language: str) -> bool:
    """Say whether a sentence holds none of the words listed for its language.

    Args:
        sentence: A normalised sentence.
        language: ``"eng"``, ``"fra"``, ``"deu"`` or ``"spa"``.

    Raises:
        ValueError: If there is no list for ``language``.
    """
    if language not in _LISTS:
        raise ValueError(
            f"language must be one of {', '.join(_LISTS)}, but is {language!r}"
        )
    whole, beginnings = _LISTS[language]
    return not any(
        word in whole or word.startswith(beginnings)
        for word in _WORD.findall(sentence.casefold())
    )
