"""XML from strangers: no entities, no external references, bounded depth. Keeps comments and white space."""

import re

from lxml import etree

from dragoman.errors import DataError

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def valid_text(text: str) -> str:
    """Text without what XML cannot say at all, such as a null character."""
    return _NOT_XML.sub("", text)


def parse_xml(content: bytes, name: str) -> etree._ElementTree:
    """Parse a file's content; `name` is for messages. A document type that declares entities is refused."""
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, strip_cdata=False, remove_pis=False
    )
    try:
        tree = etree.fromstring(content, parser).getroottree()
    except etree.XMLSyntaxError as error:
        problem = " ".join(str(error.msg).split())  # some have a newline within
        raise DataError(f"{name}: invalid XML ({problem}); fix the file") from None
    declarations = tree.docinfo.internalDTD
    if declarations is not None and any(True for _ in declarations.iterentities()):
        raise DataError(f"{name}: declares XML entities, which can hide anything; remove them from its DOCTYPE")
    return tree
